// SPDX-License-Identifier: Apache-2.0
//
// Which products warpgroups finish themselves, which leave sums in the workspace, and what rows
// that split f32 have there.
#include "kernels/cuda/plan.h"

#include <gtest/gtest.h>

#include "kernels/catalog.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/warp_work.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr int64_t kExtent = 512;

const CudaRow& RowNamed(std::string_view name) {
  const Kernel* const kernel = FindKernel(name).value();
  return *CudaRowOf(*kernel);
}

const CudaRow& WideRow() { return RowNamed("wgmma.m64n256k16.f32.bf16.bf16_128x256x64_w8x1_s3"); }
const CudaRow& Integer() { return RowNamed("wgmma.m64n256k32.s32.s8.s8_128x256x128_w8x1_s3"); }

// D = ReLU(A B + bias), D in bf16.
Problem Usual(int64_t n = kExtent) {
  Problem problem;
  problem.m = problem.k = kExtent;
  problem.n = n;
  problem.accumulation = ElementType::kF32;
  problem.a = TightLayout("a", ElementType::kBf16, Order::kRowMajor, kExtent, kExtent).value();
  problem.b = TightLayout("b", ElementType::kBf16, Order::kColumnMajor, kExtent, n).value();
  problem.d = TightLayout("d", ElementType::kBf16, Order::kRowMajor, kExtent, n).value();
  problem.bias_axis = BiasAxis::kColumns;
  problem.bias_type = ElementType::kF32;
  problem.activation = Activation::kRelu;
  return problem;
}

void AddC(ElementType type, Problem& problem) {
  problem.beta = 0.5;
  problem.c = TightLayout("c", type, Order::kColumnMajor, problem.m, problem.n).value();
}

bool KeepsSums(const CudaRow& row, const Problem& problem) {
  return PlanOf(row, problem).value().sums.are_kept;
}

TEST(CudaPlanTest, WarpgroupsFinishUsualProducts) {
  Problem problem = Usual();
  EXPECT_FALSE(KeepsSums(WideRow(), problem));
  EXPECT_EQ(PlanOf(WideRow(), problem)->workspace_bytes, 0);
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBf16}) {
    AddC(type, problem);
    problem.bias_type = type;
    problem.bias_axis = BiasAxis::kRows;
    problem.alpha = -0.5;
    EXPECT_FALSE(KeepsSums(WideRow(), problem)) << NameOf(type);
  }
}

TEST(CudaPlanTest, WhatIsSeldomAskedForLeavesSums) {
  Problem problem = Usual();
  problem.activation = Activation::kSilu;
  EXPECT_TRUE(KeepsSums(WideRow(), problem));

  problem = Usual();
  problem.bias_type = ElementType::kS8;
  EXPECT_TRUE(KeepsSums(WideRow(), problem));

  problem = Usual();
  AddC(ElementType::kF64, problem);
  EXPECT_TRUE(KeepsSums(WideRow(), problem));

  problem = Usual();
  problem.d = TightLayout("d", ElementType::kE4m3, Order::kRowMajor, kExtent, kExtent).value();
  EXPECT_TRUE(KeepsSums(WideRow(), problem));
}

// The copy engine writes whole chunks of 16 bytes.
TEST(CudaPlanTest, LinesThatAreNoWholeChunksLeaveSums) {
  EXPECT_TRUE(KeepsSums(WideRow(), Usual(kExtent + 4)));
  EXPECT_FALSE(KeepsSums(WideRow(), Usual(kExtent + 8)));

  Problem problem = Usual();
  problem.d = TightLayout("d", ElementType::kBf16, Order::kColumnMajor, kExtent, kExtent).value();
  EXPECT_TRUE(KeepsSums(WideRow(), problem));
}

// The epilogue of integers computes in f64.
TEST(CudaPlanTest, SumsOfIntegersAreFinishedByAnotherKernel) {
  Problem problem = Usual();
  problem.accumulation = ElementType::kS32;
  problem.a = TightLayout("a", ElementType::kS8, Order::kRowMajor, kExtent, kExtent).value();
  problem.b = TightLayout("b", ElementType::kS8, Order::kColumnMajor, kExtent, kExtent).value();
  EXPECT_TRUE(KeepsSums(Integer(), problem));
}

// 192 sums and metadata fill the registers.
TEST(CudaPlanTest, LargeSparseTilesLeaveSums) {
  Problem problem = Usual();
  problem.a = TightSparseLayout("a", ElementType::kBf16, kExtent, kExtent).value();
  EXPECT_TRUE(KeepsSums(RowNamed("wgmma.sp.m64n192k32.f32.bf16.bf16_256x192x64_w8x1_s4"), problem));
  EXPECT_FALSE(
      KeepsSums(RowNamed("wgmma.sp.m64n128k32.f32.bf16.bf16_256x128x64_w8x1_s5"), problem));
}

// Threads of a narrow row store one element at a time, wherever it lies.
TEST(CudaPlanTest, NarrowRowsFinishLinesOfAnyLength) {
  int narrow = 0;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    const CudaRow& row = *CudaRowOf(kernel);
    if (!IsNarrow(row) || row.instruction.a != ElementType::kBf16) continue;
    ++narrow;
    EXPECT_FALSE(KeepsSums(row, Usual(33))) << kernel.name;
  }
  EXPECT_GT(narrow, 0);
}

// Three matrices of A, times one B.
Problem OfF32(int64_t k) {
  Problem problem;
  problem.m = 130;
  problem.n = 70;
  problem.k = k;
  problem.batch = 3;
  problem.a = TightLayout("a", ElementType::kF32, Order::kRowMajor, 130, k).value();
  problem.b = TightLayout("b", ElementType::kF32, Order::kColumnMajor, k, 70).value();
  problem.b.batch_stride_bytes = 0;
  problem.d = TightLayout("d", ElementType::kF32, Order::kColumnMajor, 130, 70).value();
  return problem;
}

TEST(CudaPlanTest, SplitOperandsHaveTwoPartsRangesAndMarks) {
  const CudaRow& row = RowNamed("wgmma.m64n64k16.f32.f16.f16_from_f32_p64_128x64x64_w8x1_s4");
  const CudaPlan plan = PlanOf(row, OfF32(100)).value();
  constexpr int64_t kLine = 208;  // 100 elements of f16, in whole chunks.
  EXPECT_EQ(plan.a.part_bytes(), 130 * kLine);
  EXPECT_EQ(plan.a.batch_stride_bytes, 2 * 130 * kLine);
  EXPECT_GE(plan.a_workspace_bytes, 3 * 2 * 130 * kLine);
  EXPECT_EQ(plan.b.part_bytes(), 70 * kLine);
  EXPECT_EQ(plan.b.batch_stride_bytes, 0);
  EXPECT_GE(plan.b_workspace_bytes, 2 * 70 * kLine);

  const SplitPlan& split = plan.split;
  EXPECT_TRUE(split.is_used);
  EXPECT_EQ(split.words_of_row, 3);
  EXPECT_GE(split.marks_offset, 4);
  EXPECT_GE(split.bytes, split.marks_offset + 3 * 130 * 3 * 4);
  EXPECT_GE(split.a_ranges_offset, 3 * 2 * 130 * kLine);
  EXPECT_GE(plan.a_workspace_bytes, split.a_ranges_offset + 3 * 256 * 8);
  EXPECT_GE(split.b_ranges_bytes, 128 * 8);
  EXPECT_EQ(plan.b.offset, split.b_ranges_bytes);
  EXPECT_GE(plan.b_workspace_bytes, split.b_ranges_bytes + 2 * 70 * kLine);
  EXPECT_GE(plan.workspace_bytes, plan.a_workspace_bytes + split.bytes + plan.b_workspace_bytes +
                                      3 * plan.sums.batch_stride_bytes);
}

TEST(CudaPlanTest, ShortSumsOfF32AreNotSplit) {
  const CudaRow& row = RowNamed("wgmma.m64n64k16.f32.f16.f16_from_f32_p64_128x64x64_w8x1_s4");
  const CudaPlan plan = PlanOf(row, OfF32(63)).value();
  EXPECT_FALSE(plan.split.is_used);
  EXPECT_FALSE(plan.a.is_packed);
  EXPECT_FALSE(plan.b.is_packed);
  EXPECT_TRUE(plan.sums.are_kept);  // D is column major.
  EXPECT_LE(plan.workspace_bytes, 3 * (70 * 4 + 32) * 130);
}

}  // namespace
}  // namespace gemmd
