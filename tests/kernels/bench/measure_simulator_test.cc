// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/measure_simulator.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/kernel.h"
#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

constexpr Shape kSimulated = {20, 24, 128};

TEST(MeasureSimulatorTest, EveryPathAgreesWithTheScalarOne) {
  for (const char* name : {"mma.m16n8k16.f16.f16.f16.f16", "mma.m16n8k256.s32.b1.b1.s32.xor.popc",
                           "mma.sp.m16n8k16.f32.tf32.tf32.f32", "mma.sp.m16n8k128.s32.s4.s4.s32"}) {
    const Kernel& kernel = **FindKernel(name);
    std::set<std::string> paths;
    for (const sim::Path path : PathsOf(kernel, mma::Chip::kSm90)) {
      const SimulatorSettings settings = {.b_order = Order::kColumnMajor, .seconds = 0};
      const absl::StatusOr<SimulatorMeasurement> m =
          MeasureOnSimulator(kernel, mma::Chip::kSm90, path, kSimulated, settings);
      ASSERT_THAT(m, IsOk());
      EXPECT_EQ(m->verdict, "ok") << name;
      EXPECT_EQ(m->path, NameOf(path));
      EXPECT_GE(m->samples, 3);
      EXPECT_GT(m->fastest_seconds, 0);
      EXPECT_LE(m->fastest_seconds, m->median_seconds);
      const bool is_sparse = kernel.instruction->is_sparse();
      EXPECT_EQ(m->multiplications, 20 * 24 * 128 / (is_sparse ? 2 : 1));
      EXPECT_EQ(EntryOf(*m).cells.size(), SimulatorColumns().size());
      EXPECT_TRUE(EntryOf(*m).is_right);
      paths.insert(m->path);
    }
    EXPECT_TRUE(paths.contains("scalar")) << name;
  }
}

TEST(MeasureSimulatorTest, RefusesWhatTheChipLacks) {
  EXPECT_THAT(MeasureOnSimulator(**FindKernel("wgmma.m64n256k32.f32.e4m3.e4m3"), mma::Chip::kSm80,
                                 sim::Path::kScalar, {64, 256, 32}, {.seconds = 0}),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(MeasureSimulatorTest, AWrongResultMakesTheEntryWrong) {
  SimulatorMeasurement m = {};
  m.verdict = "byte 3 differs";
  EXPECT_FALSE(EntryOf(m).is_right);
}

}  // namespace
}  // namespace gemmd::bench
