// SPDX-License-Identifier: Apache-2.0
//
// Products of the simulator on several threads. ThreadSanitizer watches them, too, because the
// threads are not those of OpenMP.
#include "kernels/sim/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/product.h"
#include "tests/kernels/sim/operand_families.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

TEST(ParallelForTest, CallsEachIndexOnce) {
  for (const int threads : {1, 2, 5, 64}) {
    for (const int64_t count : {0, 1, 4, 1000}) {
      std::vector<int> calls(static_cast<size_t>(count));
      sim::ParallelFor(threads, count, nullptr, [&](int worker, int64_t index) {
        EXPECT_LT(worker, threads);
        ++calls[static_cast<size_t>(index)];
      });
      EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(count), 1));
    }
  }
}

TEST(ParallelForTest, LeavesOutTheRestOnceItIsAborted) {
  constexpr int64_t kForever = int64_t{1} << 60;
  for (const int threads : {1, 5}) {
    std::atomic<bool> abort = false;
    sim::ParallelFor(threads, kForever, &abort, [&](int, int64_t index) {
      if (index == 100) abort.store(true);
    });
  }
}

TEST(ParallelForTest, ThrowsWhatAThreadThrows) {
  for (const int threads : {1, 2, 5}) {
    for (const int64_t thrower : {0, 1, 500, 999}) {
      std::atomic<int> calls = 0;
      const auto body = [&](int, int64_t index) {
        if (index == thrower) throw std::bad_alloc();
        ++calls;
      };
      EXPECT_THROW(sim::ParallelFor(threads, 1000, nullptr, body), std::bad_alloc);
      EXPECT_LT(calls, 1000);
    }
  }
}

std::vector<float> Multiply(sim::Path path, const FamilyCase& product,
                            const mma::Instruction& instruction) {
  const Problem& problem = product.problem;
  std::vector<float> d(static_cast<size_t>(problem.m * problem.n));
  sim::Multiply(path,
                {.instruction = instruction,
                 .chip = mma::Chip::kSm90,
                 .problem = problem,
                 .a = product.a.data(),
                 .b = product.b.data()},
                {.data = reinterpret_cast<std::byte*>(d.data()),
                 .type = ElementType::kF32,
                 .order = Order::kRowMajor,
                 .leading_dimension = problem.n});
  return d;
}

class ParallelProductTest : public testing::TestWithParam<sim::Path> {};

// Several products at once, each of which shares its work.
TEST_P(ParallelProductTest, HasTheSameBitsOnAnyNumberOfThreads) {
  for (const std::string_view name :
       {"mma.m16n8k16.f32.f16.f16.f32", "mma.sp.m16n8k32.f32.bf16.bf16.f32"}) {
    const mma::Instruction& instruction = *mma::FindInstruction(name);
    if (!sim::CanRun(GetParam(), instruction, mma::Chip::kSm90)) GTEST_SKIP() << "no such vectors";
    RandomSource random;
    const int64_t extent = GetParam() == sim::Path::kScalar ? 70 : 300;
    const FamilyCase product =
        MakeCase(instruction, Family::kNormal, extent, extent, 2 * instruction.k, random);
    SetThreads(1);
    const std::vector<float> want = Multiply(GetParam(), product, instruction);
    std::vector<std::jthread> callers;
    for (int i = 0; i < 2; ++i) {
      callers.emplace_back([&] {
        SetThreads(3);
        EXPECT_EQ(Multiply(GetParam(), product, instruction), want);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, ParallelProductTest,
                         testing::Values(sim::Path::kScalar, sim::Path::kAvx2, sim::Path::kAvx512));

}  // namespace
}  // namespace gemmd
