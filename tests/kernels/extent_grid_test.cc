// SPDX-License-Identifier: Apache-2.0
//
// Times between and beyond measured ones; costs of parts derived from times of wholes.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "kernels/device_profile.h"
#include "kernels/host_rates.h"

namespace gemmd {
namespace {

// A call, operands that are packed, and multiplications.
double Modelled(int64_t m, int64_t n, int64_t k) {
  const auto x = static_cast<double>(m);
  const auto y = static_cast<double>(n);
  const auto z = static_cast<double>(k);
  return 1e-7 + 1e-9 * (x * z + y * z + x * y) + 2e-11 * x * y * z;
}

void ExpectClose(double got, double want, double ratio) {
  EXPECT_LE(got, want * ratio);
  EXPECT_GE(got, want / ratio);
}

TEST(ExtentGridTest, GivesBackWhatWasMeasured) {
  const ExtentGrid grid = ExtentGrid::Of(Modelled);
  for (const int64_t m : ExtentGrid::kExtents) {
    for (const int64_t n : ExtentGrid::kExtents) {
      ExpectClose(grid.Seconds(m, n, m), Modelled(m, n, m), 1 + 1e-9);
    }
  }
}

TEST(ExtentGridTest, IsCloseBetweenWhatWasMeasured) {
  const ExtentGrid grid = ExtentGrid::Of(Modelled);
  constexpr std::array<int64_t, 9> kBetween = {2, 3, 5, 20, 37, 129, 500, 1000, 5000};
  for (const int64_t m : kBetween) {
    for (const int64_t n : kBetween) {
      for (const int64_t k : kBetween) ExpectClose(grid.Seconds(m, n, k), Modelled(m, n, k), 1.6);
    }
  }
}

TEST(ExtentGridTest, GoesOnBeyondWhatWasMeasured) {
  const ExtentGrid grid = ExtentGrid::Of(Modelled);
  constexpr int64_t kFar = int64_t{1} << 40;
  ExpectClose(grid.Seconds(1, 1, kFar), Modelled(1, 1, kFar), 1.1);
  ExpectClose(grid.Seconds(65536, 65536, 65536), Modelled(65536, 65536, 65536), 1.1);
}

TEST(ExtentGridTest, WhatIsLeftOutFollowsFromSmallerProducts) {
  const ExtentGrid grid = ExtentGrid::Of([](int64_t m, int64_t n, int64_t k) {
    return m * n * k > 9'000'000 ? 0 : Modelled(m, n, k);
  });
  ExpectClose(grid.Seconds(1024, 1024, 1024), Modelled(1024, 1024, 1024), 1.5);
  ExpectClose(grid.Seconds(16384, 384, 1024), Modelled(16384, 384, 1024), 1.5);
}

// As if other work had used the processor while the smaller product was measured.
TEST(ExtentGridTest, MoreWorkTakesNoLessTimeThanLess) {
  const ExtentGrid grid = ExtentGrid::Of(
      [](int64_t m, int64_t n, int64_t k) { return m == 1024 ? 1.0 : Modelled(m, n, k); });
  EXPECT_GE(grid.Seconds(1 << 20, 8, 8), grid.Seconds(16384, 8, 8));
}

TEST(FitCostsTest, FindsTheCostsOfParts) {
  const std::array<double, 3> costs = {1e-6, 3e-9, 2e-10};
  std::vector<TimedWork<3>> works;
  for (const double packed : {10.0, 1e3, 1e5}) {
    for (const double multiplied : {0.0, 1e4, 1e7}) {
      works.push_back(
          {{1, packed, multiplied}, costs[0] + packed * costs[1] + multiplied * costs[2]});
    }
  }
  const std::array<double, 3> got = FitCosts(works);
  for (size_t i = 0; i < costs.size(); ++i) ExpectClose(got[i], costs[i], 1.01);
}

TEST(FitCostsTest, NoPartCostsLessThanNothing) {
  // The second part seems to make work shorter.
  const std::array<double, 2> got = FitCosts<2>({{{1, 0}, 2e-6}, {{1, 1000}, 1e-6}});
  EXPECT_GT(got[0], 0);
  EXPECT_EQ(got[1], 0);
}

TEST(FitCostsTest, PartsOfNoWorkCostNothing) {
  EXPECT_EQ(FitCosts<1>({}), (std::array<double, 1>{0}));
  EXPECT_EQ((FitCosts<2>({{{1, 0}, 1e-6}})[1]), 0);
}

}  // namespace
}  // namespace gemmd
