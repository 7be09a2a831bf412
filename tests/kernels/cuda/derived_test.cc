// SPDX-License-Identifier: Apache-2.0
//
// What GPU kernels derive from one operand alone: the parts of the workspace that can be kept.
#include <gtest/gtest.h>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/warp_work.h"
#include "kernels/kernel.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

// Operands in the opposite order to the instruction's are packed, unless the row reads either
// order.
Problem ProblemOf(const Kernel& kernel, Order a, Order b, int64_t m = 128) {
  constexpr int64_t kExtent = 128;
  Problem problem;
  problem.m = m;
  problem.n = problem.k = kExtent;
  problem.a = kernel.instruction->is_sparse() ? TightSparseLayout("a", kernel.a, m, kExtent).value()
                                              : TightLayout("a", kernel.a, a, m, kExtent).value();
  problem.b = TightLayout("b", kernel.b, b, kExtent, kExtent).value();
  problem.d = TightLayout("d", kernel.recipe.accumulation, Order::kRowMajor, m, kExtent).value();
  problem.accumulation = kernel.recipe.accumulation;
  return problem;
}

TEST(DerivedOperandTest, PartsOfTheWorkspaceAreThePlans) {
  int packed = 0;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    for (const Order a : {Order::kRowMajor, Order::kColumnMajor}) {
      for (const Order b : {Order::kRowMajor, Order::kColumnMajor}) {
        const Problem problem = ProblemOf(kernel, a, b);
        const CudaRow row = MultiplicationOf(*CudaRowOf(kernel), problem).row;
        const absl::StatusOr<CudaPlan> plan = PlanOf(row, problem);
        const absl::StatusOr<DerivedOperand> of_a = kernel.derived(problem, mma::Operand::kA);
        const absl::StatusOr<DerivedOperand> of_b = kernel.derived(problem, mma::Operand::kB);
        ASSERT_THAT(plan, IsOk());
        ASSERT_THAT(of_a, IsOk());
        ASSERT_THAT(of_b, IsOk());
        EXPECT_EQ(of_a->offset, 0) << kernel.name;
        EXPECT_EQ(of_b->offset, of_a->bytes + plan->split.bytes) << kernel.name;
        EXPECT_EQ(of_a->bytes + of_b->bytes + plan->split.bytes,
                  kernel.workspace_bytes(problem).value());
        EXPECT_EQ(of_a->bytes > 0, plan->a.is_packed || kernel.instruction->is_sparse());
        EXPECT_EQ(of_b->bytes > 0, plan->b.is_packed) << kernel.name;
        EXPECT_NE(of_a->form, of_b->form) << kernel.name << ": k is the other way";
        if (plan->b.is_packed) ++packed;
      }
    }
  }
  EXPECT_GT(packed, 100);
}

// A narrow row computes a D of few rows by its transpose, so the form of B comes first.
TEST(DerivedOperandTest, ANarrowRowTakesTheTranspose) {
  int narrow = 0;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    if (!IsNarrow(*CudaRowOf(kernel))) continue;
    const Problem problem = ProblemOf(kernel, Order::kColumnMajor, Order::kRowMajor, 16);
    const absl::StatusOr<DerivedOperand> of_a = kernel.derived(problem, mma::Operand::kA);
    const absl::StatusOr<DerivedOperand> of_b = kernel.derived(problem, mma::Operand::kB);
    ASSERT_THAT(of_a, IsOk());
    ASSERT_THAT(of_b, IsOk());
    EXPECT_EQ(of_b->offset, 0) << kernel.name;
    EXPECT_EQ(of_a->offset, of_b->bytes) << kernel.name;
    const int64_t packed = CanReadAcross(*CudaRowOf(kernel)) ? 0 : 1;
    EXPECT_EQ(of_a->bytes, packed * 16 * 128 * BitsOf(kernel.a) / 8) << kernel.name;
    EXPECT_EQ(of_b->bytes, packed * 128 * 128 * BitsOf(kernel.b) / 8) << kernel.name;
    ++narrow;
  }
  EXPECT_GE(narrow, 15);
}

// A wide row computes a column-major D by its transpose. What it derives from an operand is the
// same.
TEST(DerivedOperandTest, ColumnsOfDTakeTheTranspose) {
  int wide = 0;
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    const CudaRow& row = *CudaRowOf(kernel);
    if (!HasWarpgroups(row) || IsNarrow(row) || row.instruction.is_sparse() || row.splits_f32) {
      continue;
    }
    const Problem in_rows = ProblemOf(kernel, Order::kColumnMajor, Order::kRowMajor, 48);
    Problem in_columns = in_rows;
    in_columns.d.order = Order::kColumnMajor;
    in_columns.d.leading_dimension = 48;
    for (const mma::Operand operand : {mma::Operand::kA, mma::Operand::kB}) {
      const absl::StatusOr<DerivedOperand> in_order = kernel.derived(in_rows, operand);
      const absl::StatusOr<DerivedOperand> transposed = kernel.derived(in_columns, operand);
      ASSERT_THAT(in_order, IsOk());
      ASSERT_THAT(transposed, IsOk());
      EXPECT_EQ(transposed->form, in_order->form) << kernel.name;
      EXPECT_EQ(transposed->bytes, in_order->bytes) << kernel.name;
      EXPECT_EQ(transposed->bytes > 0, !CanReadAcross(row)) << kernel.name;
    }
    EXPECT_EQ(kernel.derived(in_columns, mma::Operand::kB)->offset, 0) << kernel.name;
    EXPECT_EQ(kernel.derived(in_columns, mma::Operand::kA)->offset,
              kernel.derived(in_columns, mma::Operand::kB)->bytes);
    ++wide;
  }
  EXPECT_GE(wide, 30);
}

TEST(DerivedOperandTest, OtherFamiliesMakeNothing) {
  const Kernel& kernel = *Catalog(DeviceKind::kSim).begin();
  const absl::StatusOr<DerivedOperand> of_a = kernel.derived(Problem(), mma::Operand::kA);
  ASSERT_THAT(of_a, IsOk());
  EXPECT_EQ(of_a->bytes, 0);
}

}  // namespace
}  // namespace gemmd
