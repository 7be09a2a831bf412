// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/operands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/bench/problem.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/option/resources.h"
#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using testing::HasSubstr;

std::vector<double> ValuesOf(const MatrixLayout& layout, const std::vector<std::byte>& bytes) {
  std::vector<double> values;
  for (int64_t i = 0; i < layout.lines(); ++i) {
    const std::byte* const line = bytes.data() + i * layout.line_stride_bytes();
    for (int64_t j = 0; j < layout.line_length(); ++j) {
      values.push_back(Decode(layout.type, LoadBits(layout.type, line, j)));
    }
  }
  return values;
}

TEST(OperandsTest, FloatsAreNormalVariates) {
  for (const ElementType type : {ElementType::kF64, ElementType::kTf32, ElementType::kBf16,
                                 ElementType::kF16, ElementType::kE4m3, ElementType::kE2m3}) {
    const MatrixLayout layout = *TightLayout("a", type, Order::kRowMajor, 100, 400);
    double sum = 0;
    double squares = 0;
    for (const double value : ValuesOf(layout, RandomDense(layout, 7))) {
      sum += value;
      squares += value * value;
    }
    // Five standard deviations of the mean of 40 000 values, plus the rounding of types with few
    // bits.
    EXPECT_LE(std::fabs(sum / 40'000), 0.025) << NameOf(type);
    EXPECT_LE(std::fabs(squares / 40'000 - 1), 0.05) << NameOf(type);
  }
}

TEST(OperandsTest, IntegersTakeAllValues) {
  for (const ElementType type : {ElementType::kS8, ElementType::kU4, ElementType::kB1}) {
    const MatrixLayout layout = *TightLayout("a", type, Order::kRowMajor, 100, 401);
    const std::vector<double> values = ValuesOf(layout, RandomDense(layout, 7));
    EXPECT_EQ(std::set<double>(values.begin(), values.end()).size(), size_t{1} << BitsOf(type));
  }
}

// Identical rows would hide indexing errors.
TEST(OperandsTest, LinesDifferAndSeedsDo) {
  const MatrixLayout layout = *TightLayout("a", ElementType::kBf16, Order::kRowMajor, 64, 256);
  const std::vector<std::byte> bytes = RandomDense(layout, 1);
  std::set<std::vector<std::byte>> lines;
  for (int64_t i = 0; i < 64; ++i) {
    lines.insert({bytes.begin() + i * 512, bytes.begin() + (i + 1) * 512});
  }
  EXPECT_EQ(lines.size(), 64U);
  EXPECT_EQ(bytes, RandomDense(layout, 1));
  EXPECT_NE(bytes, RandomDense(layout, 2));
}

TEST(OperandsTest, NaNsLieBetweenLines) {
  MatrixLayout layout = *TightLayout("a", ElementType::kF16, Order::kColumnMajor, 3, 2);
  layout.leading_dimension = 5;
  const std::vector<std::byte> bytes = RandomDense(layout, 1);
  ASSERT_EQ(bytes.size(), 20U);
  for (const size_t gap : {6, 7, 8, 9, 16, 19}) EXPECT_EQ(bytes[gap], std::byte{0xff}) << gap;
}

TEST(OperandsTest, SparseIsThePrunedDenseOne) {
  for (const ElementType type :
       {ElementType::kBf16, ElementType::kTf32, ElementType::kS8, ElementType::kS4}) {
    const MatrixLayout layout = *TightSparseLayout("a", type, 37, 72);
    const PrunedOperand operand = *RandomSparse(layout, 3);
    const SparseLayout sparse = *SparseLayoutOf("a", type, 37, 72);
    EXPECT_THAT(CheckPruned("a", sparse, operand.dense.data()), IsOk());
    EXPECT_THAT(CheckCompressed("a", sparse, operand.compressed.data()), IsOk());
    std::vector<std::byte> expanded(static_cast<size_t>(sparse.dense_bytes));
    Expand(sparse, operand.compressed.data(), expanded.data());
    EXPECT_EQ(expanded, operand.dense) << NameOf(type);
  }
}

// A, B and every set have different numbers.
TEST(OperandsTest, EachMatrixIsDrawnAnew) {
  Problem problem;
  problem.a = *TightLayout("a", ElementType::kBf16, Order::kRowMajor, 32, 32);
  problem.b = *TightLayout("b", ElementType::kBf16, Order::kRowMajor, 32, 32);
  std::set<std::vector<std::byte>> matrices;
  for (int set = 0; set < 3; ++set) {
    const Operands operands = *DrawOperands(problem, set);
    matrices.insert({operands.a, operands.b});
    EXPECT_TRUE(operands.dense_a.empty());
  }
  EXPECT_EQ(matrices.size(), 6U);
  problem.a = *TightSparseLayout("a", ElementType::kBf16, 32, 32);
  const Operands operands = *DrawOperands(problem, 0);
  EXPECT_EQ(operands.dense_a.size(), 2048U);
  EXPECT_EQ(operands.a.size(), 1024U + 128U);  // Half of the values, and two bits for each.
}

TEST(OperandsTest, MemoryThatIsNotThereIsRefusedBeforeItIsTaken) {
  constexpr int64_t kHuge = 1'000'000;
  const Orders orders;
  Problem problem;
  problem.m = problem.n = problem.k = kHuge;
  problem.a = *TightLayout("a", ElementType::kF64, orders.a, kHuge, kHuge);
  problem.b = *TightLayout("b", ElementType::kF64, orders.b, kHuge, kHuge);
  problem.d = *TightLayout("d", ElementType::kF64, orders.d, kHuge, kHuge);
  EXPECT_THAT(CheckMemory(problem, 3),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("--shapes: got 1000000x1000000x1000000, which needs "
                                 "88000000000000 bytes of memory, want at most ")));
  problem.batch = kHuge;
  EXPECT_THAT(CheckMemory(problem, 3), StatusIs(absl::StatusCode::kResourceExhausted,
                                                HasSubstr("needs 2^63 or more bytes of memory")));
  problem.batch = 0;
  EXPECT_THAT(CheckMemory(problem, 3), IsOk());
  EXPECT_EQ(option::RefuseMemory("9x9x9", 4096, 4096), "");
  EXPECT_EQ(option::RefuseMemory("9x9x9", 4096, 1024),
            "got 9x9x9, which needs 4096 bytes of memory, want at most 1024, which are free");
}

}  // namespace
}  // namespace gemmd::bench
