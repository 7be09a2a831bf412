// SPDX-License-Identifier: Apache-2.0
//
// Which chip can run which GPU kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/row_table.h"
#include "kernels/cuda/rows.h"
#include "kernels/kernel.h"
#include "kernels/matrix/text.h"
#include "kernels/sim/scalar.h"
#include "kernels/sim/unit.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

// The first kernel of an instruction, which has the largest tile. `name` is that of a row or of an
// instruction.
const Kernel& KernelOf(std::string_view name) {
  const absl::Span<const Kernel> kernels = Catalog(DeviceKind::kCuda);
  return *std::find_if(kernels.begin(), kernels.end(), [name](const Kernel& kernel) {
    return kernel.name == name || mma::NameOf(*kernel.instruction).view() == name;
  });
}

Target GpuOf(mma::Chip chip) { return {.kind = DeviceKind::kCuda, .chip = chip}; }

TEST(ChipsTest, KernelsAreAvailableWhereTheirCodeRuns) {
  for (const mma::Chip chip : mma::kAllChips) {
    for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
      EXPECT_EQ(kernel.available(GpuOf(chip)).ok(), RunsOn(*CudaRowOf(kernel), chip))
          << kernel.name << " on " << mma::NameOf(chip);
    }
  }
}

TEST(ChipsTest, EveryInstructionOfAChipHasAKernelThatFits) {
  for (const mma::Chip chip : mma::kAllChips) {
    if (!mma::HasAsyncCopies(chip)) continue;
    for (const mma::Instruction& instruction : mma::kInstructions) {
      if (instruction.is_warpgroup()) continue;
      bool runs = false;
      for (const CudaRow& row : kCudaRows) {
        runs |= row.instruction == instruction && RunsOn(row, chip);
      }
      EXPECT_EQ(runs, mma::SupportOn(instruction, chip) != mma::Support::kUnavailable)
          << mma::NameOf(instruction).view() << " on " << mma::NameOf(chip);
    }
  }
}

TEST(ChipsTest, RefusalsSayWhatIsMissing) {
  EXPECT_THAT(KernelOf("mma.m16n8k64.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0")
                  .available(GpuOf(mma::Chip::kSm90)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "device: got sm_90, want sm_120"));
  const Kernel& large = KernelOf("mma.m16n8k16.f32.f16.f16.f32_128x256x64_w2x4_s3");
  EXPECT_THAT(large.available(GpuOf(mma::Chip::kSm80)), IsOk());
  EXPECT_THAT(large.available(GpuOf(mma::Chip::kSm120)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       Concat("device: got sm_120 with 101376 bytes of shared memory for a block, "
                              "want ",
                              SharedBytes(*CudaRowOf(large)))));
  const Kernel& bits = KernelOf("mma.m16n8k256.s32.b1.b1.s32.and.popc_192x256x1024_w2x4_s4_c2");
  EXPECT_THAT(bits.available(GpuOf(mma::Chip::kSm90)), IsOk());
  EXPECT_THAT(bits.available(GpuOf(mma::Chip::kSm100)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "device: got sm_100, which makes other instructions of this one, want one "
                       "that has it for so large a tile"));
  EXPECT_THAT(
      KernelOf("wmma.m16n16k16.row.col.f32.f16.f16.f32").available(GpuOf(mma::Chip::kSm75)),
      StatusIs(absl::StatusCode::kFailedPrecondition, "device: got sm_75, want sm_80 or later"));
}

// The accumulators that a row's instruction can produce: no -0, and no bits that a narrow adder
// drops.
std::vector<uint32_t> SumsOf(const mma::Instruction& instruction) {
  if (instruction.d == ElementType::kF32) {
    return {0, 0x3f800000, 0xc0400000, 0x00000400, 0x80800000, 0x7f000000, 0x7f800000, 0x7fffffff};
  }
  if (instruction.d == ElementType::kS32) return {0, 1, 0xffffffff, 0x7fffffff, 0x80000000};
  return {0, 0xbe003c00, 0x04000001, 0x7fff7bff, 0xfc007c00};  // Pairs of f16.
}

// Kernels run whole tiles along k, with zeros after the operands.
TEST(ChipsTest, StepsOfZerosLeaveAccumulatorsAsTheyAre) {
  for (const mma::Chip chip : mma::kAllChips) {
    for (const CudaRow& row : kCudaRows) {
      const mma::Instruction& instruction = row.instruction;
      if (!RunsOn(row, chip) || StepsOfTile(row) == 1 || CountsEveryStep(row)) continue;
      sim::Unit unit(instruction, chip);
      const std::vector<uint32_t> a(unit.a_map().words());
      const std::vector<uint32_t> b(unit.b_map().words());
      const std::vector<uint32_t> metadata(
          instruction.is_sparse() ? static_cast<size_t>(instruction.lanes()) : 0);
      std::vector<uint32_t> c(unit.c_map().words());
      std::vector<uint32_t> d = c;
      const std::vector<uint32_t> sums = SumsOf(instruction);
      for (size_t i = 0; i < c.size(); ++i) c[i] = sums[i % sums.size()];
      sim::OperandRegisters operands;
      operands.a = a;
      operands.b = b;
      operands.c = c;
      operands.metadata = metadata;
      unit.Execute(operands, d);
      EXPECT_EQ(c, d) << mma::NameOf(instruction).view() << " on " << mma::NameOf(chip);
    }
  }
}

// Kernels of block-scaled instructions use these factors if a problem has no block factors.
TEST(ChipsTest, FactorsThatKernelsGiveAreOne) {
  for (const mma::ScaleType type : {mma::ScaleType::kUe8m0, mma::ScaleType::kUe4m3}) {
    const sim::Factor factor = sim::DecodeFactor(type, mma::OneOf(type));
    EXPECT_FALSE(factor.is_nan);
    EXPECT_EQ(factor.exponent, 0);
    EXPECT_EQ(factor.significand, 1u << factor.fraction_bits);
  }
}

}  // namespace
}  // namespace gemmd
