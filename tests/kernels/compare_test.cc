// SPDX-License-Identifier: Apache-2.0
//
// A comparator that cannot fail proves nothing: here each one fails once.
#include "tests/testing/compare.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "tests/testing/special_values.h"

namespace gemmd {
namespace {

// A 2 x 3 matrix of f32, row major.
class CompareTest : public testing::Test {
 protected:
  MatrixView View(const std::vector<float>& values) const {
    return {layout_, 1, reinterpret_cast<const std::byte*>(values.data())};
  }

  const MatrixLayout layout_ = TightLayout("d", ElementType::kF32, Order::kRowMajor, 2, 3).value();
  const std::vector<float> values_ = {1, 2, 3, 4, 5, 6};
  const std::vector<double> want_ = {1, 2, 3, 4, 5, 6};
  const std::vector<double> bound_ = {0, 0, 0, 0, 0, 0};
};

TEST_F(CompareTest, BitEqualTakesEqualBits) { EXPECT_TRUE(BitEqual(View(values_), View(values_))); }

TEST_F(CompareTest, BitEqualNamesTheFirstDifferenceAndCountsAll) {
  std::vector<float> other = values_;
  other[4] = 5.5;
  other[5] = -6;
  const testing::AssertionResult result = BitEqual(View(other), View(values_));
  EXPECT_FALSE(result);
  EXPECT_STREQ(result.message(),
               "2 of 6 elements of type f32 differ, first at matrix 0, row 1, column 1: "
               "got 0x40b00000, want 0x40a00000 (5.5, 5)");
}

TEST_F(CompareTest, BitEqualTellsZerosAndNansApart) {
  std::vector<float> zero = values_;
  std::vector<float> minus_zero = values_;
  zero[0] = 0.0f;
  minus_zero[0] = -0.0f;
  EXPECT_FALSE(BitEqual(View(zero), View(minus_zero)));
  std::vector<float> nan = values_;
  nan[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(BitEqual(View(nan), View(nan)));
  EXPECT_FALSE(BitEqual(View(nan), View(values_)));
}

TEST_F(CompareTest, BitEqualComparesElementsOfDifferentLayouts) {
  const MatrixLayout columns =
      TightLayout("d", ElementType::kF32, Order::kColumnMajor, 2, 3).value();
  const std::vector<float> by_column = {1, 4, 2, 5, 3, 6};
  const MatrixView view = {columns, 1, reinterpret_cast<const std::byte*>(by_column.data())};
  EXPECT_TRUE(BitEqual(view, View(values_)));
}

TEST_F(CompareTest, WithinBoundTakesErrorsUpToTheBound) {
  std::vector<float> got = values_;
  got[2] = 3.25;
  std::vector<double> bound = bound_;
  EXPECT_FALSE(WithinBound(View(got), want_, bound));
  bound[2] = 0.25;
  EXPECT_TRUE(WithinBound(View(got), want_, bound));
  bound[2] = 0.24;
  EXPECT_FALSE(WithinBound(View(got), want_, bound));
}

TEST_F(CompareTest, WithinBoundFailsOnOneWrongElement) {
  std::vector<float> got = values_;
  got[3] = 40;
  const testing::AssertionResult result =
      WithinBound(View(got), want_, std::vector<double>(6, 1e-3));
  EXPECT_FALSE(result);
  EXPECT_STREQ(result.message(),
               "1 of 6 elements of type f32 differ, first at matrix 0, row 1, column 0: "
               "got 40, want 4 within 0.001");
}

TEST_F(CompareTest, WithinBoundFailsOnNan) {
  std::vector<float> got = values_;
  got[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(WithinBound(View(got), want_, std::vector<double>(6, 1e300)));
  EXPECT_FALSE(WithinBound(View(got), want_, std::vector<double>(6, kInfinity)));
  EXPECT_FALSE(WithinBound(View(values_), want_, std::vector<double>(6, kNan)));
}

TEST_F(CompareTest, WithinBoundWantsInfinityAndNanInKind) {
  std::vector<double> want = want_;
  want[0] = kNan;
  want[1] = kInfinity;
  const std::vector<double> bound(6, 1e300);
  EXPECT_FALSE(WithinBound(View(values_), want, bound));
  std::vector<float> got = values_;
  got[0] = std::numeric_limits<float>::quiet_NaN();
  got[1] = -std::numeric_limits<float>::infinity();
  EXPECT_FALSE(WithinBound(View(got), want, bound));
  got[1] = -got[1];
  EXPECT_TRUE(WithinBound(View(got), want, bound));
}

TEST_F(CompareTest, WithinBoundWantsOneValueAndBoundPerElement) {
  EXPECT_FALSE(WithinBound(View(values_), std::vector<double>{1, 2}, bound_));
}

}  // namespace
}  // namespace gemmd
