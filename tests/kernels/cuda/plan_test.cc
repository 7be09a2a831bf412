// SPDX-License-Identifier: Apache-2.0
//
// Which products warpgroups finish themselves, which leave sums in the workspace, and the workspace
// of rows that split f32.
#include "kernels/cuda/plan.h"

#include <gtest/gtest.h>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/warp_work.h"
#include "kernels/device_profile.h"
#include "kernels/kernel.h"
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
  problem.bias_type = ElementType::kS8;
  EXPECT_TRUE(KeepsSums(WideRow(), problem));

  problem = Usual();
  AddC(ElementType::kF64, problem);
  EXPECT_TRUE(KeepsSums(WideRow(), problem));

  problem = Usual();
  problem.d = TightLayout("d", ElementType::kE4m3, Order::kRowMajor, kExtent, kExtent).value();
  EXPECT_TRUE(KeepsSums(WideRow(), problem));
}

// Activations need registers beside a thread's sums, of which the largest tiles have 192.
TEST(CudaPlanTest, WarpgroupsApplyEveryActivationWhereRegistersSuffice) {
  for (const Activation activation :
       {Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu}) {
    Problem problem = Usual();
    problem.activation = activation;
    EXPECT_FALSE(KeepsSums(WideRow(), problem));
    EXPECT_TRUE(KeepsSums(RowNamed("wgmma.m64n192k16.f32.bf16.bf16_256x192x64_w8x1_s3"), problem));
    for (const char* name : {"wgmma.m64n128k16.f32.bf16.bf16_128x128x64_w8x1_s6",
                             "wgmma.m64n128k16.f32.bf16.bf16_128x128x64_w8x1_s6_turns",
                             "wgmma.m64n64k16.f32.bf16.bf16_128x64x64_w8x1_s8",
                             "wgmma.m64n16k16.f32.bf16.bf16_64x16x64_w4x1_s22"}) {
      EXPECT_FALSE(KeepsSums(RowNamed(name), problem)) << name;
    }
  }
}

// An operand of 16 bits is read in place in both orders if its lines are whole chunks. Rows of
// other types pack what lies across k, and so do rows of 16 bits if lines are ragged.
TEST(CudaPlanTest, OperandsOf16BitsAreReadInEitherOrder) {
  constexpr int64_t kOthers = 136;  // Not whole tiles.
  int of_16_bits = 0;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    const CudaRow& row = *CudaRowOf(kernel);
    if (!HasWarpgroups(row) || row.instruction.is_sparse()) continue;
    const bool can = CanReadAcross(row);
    EXPECT_EQ(can, !row.splits_f32 && BitsOf(kernel.a) == 16) << kernel.name;
    if (can) ++of_16_bits;
    for (const bool a_is_across : {false, true}) {
      for (const bool b_is_across : {false, true}) {
        Problem problem;
        problem.m = problem.n = kOthers;
        problem.k = 96;
        problem.accumulation = kernel.recipe.accumulation;
        problem.a = TightLayout("a", kernel.a, a_is_across ? Order::kColumnMajor : Order::kRowMajor,
                                kOthers, 96)
                        .value();
        problem.b = TightLayout("b", kernel.b, b_is_across ? Order::kRowMajor : Order::kColumnMajor,
                                96, kOthers)
                        .value();
        problem.d =
            TightLayout("d", problem.accumulation, Order::kRowMajor, kOthers, kOthers).value();
        const Multiplication multiplied = MultiplicationOf(row, problem);
        EXPECT_EQ(IsAcross(multiplied.row.across, mma::Operand::kA), can && a_is_across);
        EXPECT_EQ(IsAcross(multiplied.row.across, mma::Operand::kB), can && b_is_across);
        const CudaPlan plan = PlanOf(multiplied.row, problem).value();
        EXPECT_EQ(plan.a.is_packed, row.splits_f32 || (a_is_across && !can)) << kernel.name;
        EXPECT_EQ(plan.b.is_packed, row.splits_f32 || (b_is_across && !can)) << kernel.name;
        if (!can || !a_is_across) continue;
        EXPECT_EQ(plan.a.lines, 96);
        EXPECT_EQ(plan.a.line_bytes, 2 * kOthers);
        problem.a.leading_dimension = kOthers + 1;
        const CudaRow ragged = MultiplicationOf(row, problem).row;
        EXPECT_FALSE(IsAcross(ragged.across, mma::Operand::kA)) << kernel.name;
        EXPECT_TRUE(PlanOf(ragged, problem)->a.is_packed) << kernel.name;
        EXPECT_EQ(PlanOf(ragged, problem)->a.lines, kOthers) << kernel.name;
      }
    }
  }
  EXPECT_GE(of_16_bits, 20);
}

// The copy engine writes whole chunks of 16 bytes.
TEST(CudaPlanTest, LinesThatAreNoWholeChunksLeaveSums) {
  EXPECT_TRUE(KeepsSums(WideRow(), Usual(kExtent + 4)));
  EXPECT_FALSE(KeepsSums(WideRow(), Usual(kExtent + 8)));

  Problem problem = Usual();
  problem.d = TightLayout("d", ElementType::kBf16, Order::kColumnMajor, kExtent, kExtent).value();
  EXPECT_TRUE(KeepsSums(WideRow(), problem));
}

// A column-major bf16 D whose lines begin every `leading` elements.
Problem InColumns(const Kernel& kernel, int64_t m, int64_t leading) {
  Problem problem;
  problem.m = m;
  problem.n = 384;
  problem.k = 256;
  problem.batch = 2;
  problem.accumulation = kernel.recipe.accumulation;
  problem.a = kernel.instruction->is_sparse()
                  ? TightSparseLayout("a", kernel.a, m, 256).value()
                  : TightLayout("a", kernel.a, Order::kRowMajor, m, 256).value();
  problem.b = TightLayout("b", kernel.b, Order::kRowMajor, 256, 384).value();
  const ElementType d =
      problem.accumulation == ElementType::kS32 ? ElementType::kS32 : ElementType::kBf16;
  problem.d = TightLayout("d", d, Order::kColumnMajor, leading, 384).value();
  problem.d.rows = m;
  return problem;
}

// The copy engine only writes rows, so D is computed by its transpose, with the row for the
// exchanged types.
TEST(CudaPlanTest, WideRowsStoreColumnsByTheTranspose) {
  DeviceProfile profile;
  profile.target = {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90, .multiprocessors = 132};
  profile.memory_bytes_per_second = 4e12;
  int wide = 0;
  int mixed = 0;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    const CudaRow& row = *CudaRowOf(kernel);
    Problem problem = InColumns(kernel, 512, 520);
    const Multiplication multiplied = MultiplicationOf(row, problem);
    EXPECT_EQ(kernel.workspace_bytes(problem).value(),
              PlanOf(multiplied.row, multiplied.problem)->workspace_bytes);
    if (!HasWarpgroups(row) || row.instruction.is_sparse() || row.splits_f32) {
      EXPECT_FALSE(multiplied.is_transposed) << kernel.name;
      continue;
    }
    if (IsNarrow(row)) continue;
    ++wide;
    if (kernel.a != kernel.b) ++mixed;
    ASSERT_TRUE(multiplied.is_transposed) << kernel.name;
    EXPECT_EQ(multiplied.problem, Transposed(problem));
    EXPECT_EQ(multiplied.row.instruction.a, kernel.b);
    EXPECT_EQ(multiplied.row.instruction.b, kernel.a);
    EXPECT_TRUE(RowOfTranspose(multiplied.row) == row) << "and back";
    EXPECT_TRUE(multiplied.row.tile == row.tile && multiplied.row.promotion_k == row.promotion_k);
    EXPECT_FALSE(KeepsSums(multiplied.row, multiplied.problem)) << kernel.name;
    if (kernel.a == kernel.b) {
      EXPECT_EQ(kernel.predicted_seconds(problem, profile, 1e15),
                kernel.predicted_seconds(multiplied.problem, profile, 1e15));
    }
    // Columns that are not whole chunks leave sums, in the order of D.
    problem = InColumns(kernel, 511, 511);
    EXPECT_TRUE(MultiplicationOf(row, problem).is_transposed);
    problem.d.order = Order::kRowMajor;
    problem.d.leading_dimension = 384;
    EXPECT_FALSE(MultiplicationOf(row, problem).is_transposed);
  }
  EXPECT_GE(wide, 30);
  EXPECT_GE(mixed, 8);
}

// The copy engine cannot address lines beyond 2 GiB.
TEST(CudaPlanTest, VeryLongColumnsAreNotTransposed) {
  const Kernel& kernel = *FindKernel("wgmma.m64n256k16.f32.bf16.bf16_128x256x64_w8x1_s3").value();
  constexpr int64_t kMax = (int64_t{1} << 29) - 20;
  EXPECT_TRUE(MultiplicationOf(WideRow(), InColumns(kernel, kMax, kMax)).is_transposed);
  EXPECT_FALSE(MultiplicationOf(WideRow(), InColumns(kernel, kMax + 20, kMax + 20)).is_transposed);
  EXPECT_FALSE(MultiplicationOf(WideRow(), InColumns(kernel, 512, 1 << 30)).is_transposed);
}

Problem OfBytes(ElementType type, ElementType accumulation, ElementType d) {
  Problem problem = Usual();
  problem.accumulation = accumulation;
  problem.a = TightLayout("a", type, Order::kRowMajor, kExtent, kExtent).value();
  problem.b = TightLayout("b", type, Order::kColumnMajor, kExtent, kExtent).value();
  problem.d = TightLayout("d", d, Order::kRowMajor, kExtent, kExtent).value();
  return problem;
}

// In f64, into the usual types and the 8-bit ones that the next product takes; not if 192 sums fill
// the registers.
TEST(CudaPlanTest, SumsOfIntegersAreFinishedInRegisters) {
  const CudaRow& large = RowNamed("wgmma.m64n192k32.s32.s8.s8_256x192x128_w8x1_s3");
  for (const ElementType d :
       {ElementType::kBf16, ElementType::kF16, ElementType::kF32, ElementType::kS8}) {
    Problem problem = OfBytes(ElementType::kS8, ElementType::kS32, d);
    EXPECT_FALSE(KeepsSums(Integer(), problem)) << NameOf(d);
    EXPECT_TRUE(KeepsSums(large, problem)) << NameOf(d);
    problem.activation = Activation::kSilu;
    EXPECT_TRUE(KeepsSums(Integer(), problem)) << NameOf(d);
  }
  for (const ElementType d : {ElementType::kE4m3, ElementType::kU8, ElementType::kF64}) {
    EXPECT_TRUE(KeepsSums(Integer(), OfBytes(ElementType::kS8, ElementType::kS32, d))) << NameOf(d);
  }
  Problem whole = OfBytes(ElementType::kS8, ElementType::kS32, ElementType::kS32);
  EXPECT_TRUE(KeepsSums(Integer(), whole));
  whole.bias_axis = BiasAxis::kNone;
  whole.activation = Activation::kNone;
  EXPECT_FALSE(KeepsSums(Integer(), whole));
  whole.alpha = 2;
  EXPECT_TRUE(KeepsSums(Integer(), whole));
}

TEST(CudaPlanTest, ProductsOfBytesStoreBytes) {
  const CudaRow& row = RowNamed("wgmma.m64n128k32.f32.e4m3.e4m3_128x128x128_w8x1_s6");
  const auto problem_of = [](ElementType d) {
    return OfBytes(ElementType::kE4m3, ElementType::kF32, d);
  };
  EXPECT_FALSE(KeepsSums(row, problem_of(ElementType::kE4m3)));
  EXPECT_FALSE(KeepsSums(row, problem_of(ElementType::kE5m2)));
  EXPECT_TRUE(KeepsSums(row, problem_of(ElementType::kS8)));
  EXPECT_TRUE(KeepsSums(RowNamed("wgmma.m64n192k32.f32.e4m3.e4m3_256x192x128_w8x1_s3"),
                        problem_of(ElementType::kE4m3)));
}

// 192 sums and metadata fill the registers.
TEST(CudaPlanTest, LargeSparseTilesLeaveSums) {
  Problem problem = Usual();
  problem.a = TightSparseLayout("a", ElementType::kBf16, kExtent, kExtent).value();
  EXPECT_TRUE(KeepsSums(RowNamed("wgmma.sp.m64n192k32.f32.bf16.bf16_256x192x64_w8x1_s4"), problem));
  EXPECT_FALSE(
      KeepsSums(RowNamed("wgmma.sp.m64n128k32.f32.bf16.bf16_256x128x64_w8x1_s5"), problem));
}

// Threads of a narrow row store one element at a time, wherever it is.
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
