// SPDX-License-Identifier: Apache-2.0
//
// The order of packed weights, and which products narrow rows multiply with them.
#include "kernels/cuda/weights.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "kernels/cuda/rows.h"
#include "kernels/default_recipe.h"
#include "kernels/device_profile.h"
#include "kernels/kernel.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/fragment.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using enum ElementType;

const Kernel& Narrow() {
  return *FindKernel("wgmma.m64n16k16.f32.bf16.bf16_64x16x64_w4x1_s22").value();
}
const CudaRow& RowOf(const Kernel& kernel) { return *CudaRowOf(kernel); }

// A thread has the fragment of A of mma.m16n8k16 for each of four instructions, which give the
// row's bits.
TEST(WeightsTest, ThreadsHaveTheirFragments) {
  for (const std::string_view type : {"f16.f16", "bf16.bf16"}) {
    const Kernel& row = *FindKernel(Concat("wgmma.m64n16k16.f32.", type)).value();
    const Kernel& kernel = *FindKernel(Concat("mma.m16n8k16.f32.", type, ".f32")).value();
    EXPECT_TRUE(GiveSameBits(row, kernel, mma::Chip::kSm90)) << type;
  }
  const mma::Instruction& instruction =
      *FindKernel("mma.m16n8k16.f32.bf16.bf16.f32").value()->instruction;
  std::set<std::pair<int, int>> all;
  for (int thread = 0; thread < kWeightThreads; ++thread) {
    for (int i = 0; i < kWeightCodes; ++i) {
      const WeightPosition at = PositionOfWeight(thread, i);
      const mma::Position want = mma::PositionOf(instruction, mma::Operand::kA, thread % 32, i % 8);
      EXPECT_EQ(at.line, thread / 32 * 16 + want.row) << thread << ", " << i;
      EXPECT_EQ(at.element, i / 8 * 16 + want.column) << thread << ", " << i;
      all.emplace(at.line, at.element);
    }
  }
  EXPECT_EQ(all.size(), kWeightLines * kWeightDepth);
}

TEST(WeightsTest, CodesTakeAllBits) {
  std::set<int> first_bits;
  for (int i = 0; i < kWeightCodes; ++i) {
    EXPECT_EQ(BitOfWeight(i) % 4, 0);
    EXPECT_EQ(BitOfWeight(i) / 32, i / 8) << "an instruction has a word";
    first_bits.insert(BitOfWeight(i));
  }
  EXPECT_EQ(first_bits.size(), kWeightCodes);
  EXPECT_EQ(*first_bits.rbegin(), 124);
}

// bf16 times s4 with a factor for each column and 128 elements along k.
Problem Weighted(int64_t m, int64_t n, int64_t k) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = TightLayout("a", kBf16, Order::kRowMajor, m, k).value();
  problem.b = TightLayout("b", kS4, Order::kColumnMajor, k, n).value();
  problem.d = TightLayout("d", kF32, Order::kRowMajor, m, n).value();
  problem.b_scale = ScaleKind::kBlocks;
  problem.b_blocks = {.lines = 1, .depth = 128};
  return problem;
}

TEST(WeightsTest, TakesWeightsOnTheLongerSide) {
  const auto takes = [](const Problem& problem) {
    EXPECT_THAT(Validate(problem), IsOk());
    return WeightsMultiplicationOf(RowOf(Narrow()), problem).has_value();
  };
  Problem problem = Weighted(16, 200, 192);
  const auto made = WeightsMultiplicationOf(RowOf(Narrow()), problem);
  ASSERT_TRUE(made.has_value());
  EXPECT_TRUE(made->multiplication.is_transposed);
  EXPECT_EQ(made->plan.lines, 200);
  EXPECT_EQ(made->plan.tiles, 4);
  EXPECT_EQ(made->plan.chunks, 4);  // Of three, in whole stages.
  EXPECT_EQ(made->plan.bytes(), 4 * 4 * (64 * 4 + 64 * 64 / 2));
  EXPECT_EQ(made->dequantized.b.type, kBf16);
  EXPECT_FALSE(made->dequantized.has_block_scales());

  // Either order of the weights; the transposed product.
  problem.b = TightLayout("b", kS4, Order::kRowMajor, 192, 200).value();
  EXPECT_TRUE(takes(problem));
  EXPECT_TRUE(takes(Transposed(problem)));
  problem.b_scale = ScaleKind::kNone;
  EXPECT_TRUE(takes(problem));

  EXPECT_FALSE(takes(Weighted(300, 200, 192))) << "A is longer";
  EXPECT_FALSE(takes(Weighted(16, 200, 190))) << "k has no whole chunks";
  problem = Weighted(16, 200, 192);
  problem.b_blocks.depth = 32;
  EXPECT_FALSE(takes(problem));
  problem = Weighted(16, 200, 192);
  problem.b.type = kU4;
  EXPECT_FALSE(takes(problem));
  problem = Weighted(16, 200, 192);
  problem.a = TightLayout("a", kBf16, Order::kColumnMajor, 16, 192).value();
  EXPECT_FALSE(takes(problem)) << "the kernel has no code for A across k";
  problem = Weighted(16, 200, 192);
  problem.batch = 2;
  EXPECT_FALSE(takes(problem));
  problem = Weighted(16, 200, 192);
  problem.alpha = 0;
  EXPECT_FALSE(takes(problem));
  const Kernel& wide = *FindKernel("wgmma.m64n256k16.f32.bf16.bf16_128x256x64_w8x1_s3").value();
  EXPECT_FALSE(WeightsMultiplicationOf(RowOf(wide), Weighted(16, 200, 192)).has_value());
}

// The workspace begins with the packed weights, which are kept if both operand and factors stay.
TEST(WeightsTest, PackedWeightsAreKept) {
  Problem problem = Weighted(16, 200, 192);
  const int64_t bytes = WeightsMultiplicationOf(RowOf(Narrow()), problem)->plan.bytes();
  EXPECT_EQ(Narrow().workspace_bytes(problem).value(), (bytes + 255) / 256 * 256);
  EXPECT_EQ(Narrow().derived(problem, mma::Operand::kB)->bytes, 0);
  problem.b_stays = true;  // The factors come with the product.
  EXPECT_EQ(Narrow().derived(problem, mma::Operand::kB)->bytes, 0);
  problem.b_factors_stay = true;
  const DerivedOperand packed = Narrow().derived(problem, mma::Operand::kB).value();
  EXPECT_EQ(packed.offset, 0);
  EXPECT_EQ(packed.bytes, (bytes + 255) / 256 * 256);
  EXPECT_EQ(Narrow().derived(problem, mma::Operand::kA)->bytes, 0);
  // The form in memory is another one.
  const Kernel& wide = *FindKernel("wgmma.m64n256k16.f32.bf16.bf16_128x256x64_w8x1_s3").value();
  EXPECT_NE(wide.derived(problem, mma::Operand::kB)->form, packed.form);

  // As A, the same tensor has k along its other axis.
  Problem as_a = Transposed(problem);
  as_a.a = TightLayout("a", kS4, Order::kColumnMajor, 200, 192).value();
  const DerivedOperand packed_a = Narrow().derived(as_a, mma::Operand::kA).value();
  EXPECT_EQ(packed_a.bytes, packed.bytes);
  EXPECT_NE(packed_a.form, packed.form);

  DeviceProfile profile;
  profile.target = {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90, .multiprocessors = 132};
  profile.memory_bytes_per_second = 4.3e12;
  const Problem large = [] {
    Problem made = Weighted(16, 28672, 8192);
    made.b_stays = made.b_factors_stay = true;
    return made;
  }();
  const double seconds = Narrow().predicted_seconds(large, profile, 6e13);
  EXPECT_GT(seconds, 132e6 / 4.3e12);
  EXPECT_LT(seconds, 70e-6);
  EXPECT_LT(seconds, wide.predicted_seconds(large, profile, 6e14));
}

TEST(WeightsTest, RefusesHostileSizes) {
  Problem problem = Weighted(16, 200, 192);
  problem.k = int64_t{1} << 58;
  EXPECT_FALSE(WeightsMultiplicationOf(RowOf(Narrow()), problem).has_value());
}

}  // namespace
}  // namespace gemmd
