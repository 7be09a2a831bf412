// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/statistics.h"

#include <gtest/gtest.h>

#include <numeric>

namespace gemmd::bench {
namespace {

TEST(StatisticsTest, MedianLiesInTheMiddleInAnyOrder) {
  EXPECT_DOUBLE_EQ(Median({5}), 5);
  EXPECT_DOUBLE_EQ(Median({9, 1, 5}), 5);
  EXPECT_DOUBLE_EQ(Median({4, 1, 3, 2}), 2.5);
}

TEST(StatisticsTest, QuantilesAreBetweenValuesInProportion) {
  EXPECT_DOUBLE_EQ(Quantile({10, 20, 30}, 0), 10);
  EXPECT_DOUBLE_EQ(Quantile({10, 20, 30}, 1), 30);
  EXPECT_DOUBLE_EQ(Quantile({10, 20, 30}, 0.25), 15);
}

TEST(StatisticsTest, SpreadIsOfTheMiddleHalf) {
  EXPECT_DOUBLE_EQ(Spread({7, 7, 7}), 0);
  std::vector<double> values(101);
  std::iota(values.begin(), values.end(), 50);  // 50 to 150; half of them 75 to 125.
  EXPECT_DOUBLE_EQ(Spread(values), 0.5);
  values.back() = 1e9;  // One outlier changes nothing.
  EXPECT_DOUBLE_EQ(Spread(values), 0.5);
}

TEST(StatisticsTest, RatioIsOfEachTurn) {
  // The device slows down over time for both.
  EXPECT_DOUBLE_EQ(MedianRatio({2, 4, 8}, {1, 2, 4}), 2);
  EXPECT_DOUBLE_EQ(MedianRatio({1, 1, 9}, {1, 2, 3}), 1);
}

}  // namespace
}  // namespace gemmd::bench
