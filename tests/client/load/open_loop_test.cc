// SPDX-License-Identifier: Apache-2.0
#include "client/load/open_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ArrivalPlan AtRate(double rate) { return {.rate = {.from = rate, .to = rate}}; }

std::vector<int64_t> Take(ArrivalPlan plan, int count) {
  Arrivals arrivals(std::move(plan));
  std::vector<int64_t> times;
  for (int i = 0; i < count; ++i) times.push_back(arrivals.NextNs());
  return times;
}

TEST(ArrivalsTest, ConstantRateDoesNotDrift) {
  const std::vector<int64_t> times = Take(AtRate(3), 30001);
  EXPECT_EQ(times[0], 0);
  EXPECT_EQ(times[1], 333'333'333);
  EXPECT_EQ(times[30000], 10'000'000'000'000);
}

TEST(ArrivalsTest, PoissonGapsAreExponential) {
  constexpr int kCount = 200000;
  ArrivalPlan plan = AtRate(1000);
  plan.is_poisson = true;
  const std::vector<int64_t> times = Take(plan, kCount);
  double sum = 0;
  double squares = 0;
  int above_mean = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const double gap_s = static_cast<double>(times[i] - times[i - 1]) * 1e-9;
    ASSERT_GE(gap_s, 0);
    sum += gap_s;
    squares += gap_s * gap_s;
    above_mean += gap_s > 1e-3;
  }
  // Five standard errors: of the mean 1/sqrt(n), of the second moment sqrt(20/4)/sqrt(n), of a
  // share p sqrt(p(1-p)/n).
  const double n = kCount - 1;
  EXPECT_LE(std::fabs(sum / n - 1e-3), 5e-3 / std::sqrt(n));
  EXPECT_LE(std::fabs(squares / n - 2e-6), 5 * 2e-6 * std::sqrt(5 / n));
  EXPECT_LE(std::fabs(above_mean / n - std::exp(-1)), 5 * 0.4823 / std::sqrt(n));
}

TEST(ArrivalsTest, SeedsDecide) {
  ArrivalPlan plan = AtRate(100);
  plan.is_poisson = true;
  ArrivalPlan other = plan;
  other.seed = 2;
  EXPECT_EQ(Take(plan, 100), Take(plan, 100));
  EXPECT_NE(Take(plan, 100), Take(other, 100));
}

TEST(ArrivalsTest, RampGoesFromOneRateToTheOther) {
  const ArrivalPlan plan = {.rate = {.from = 100, .to = 300, .ramp_ns = 10'000'000'000}};
  const std::vector<int64_t> times = Take(plan, 5000);
  const auto calls_until = [&](double s) {
    return std::lower_bound(times.begin(), times.end(), std::llround(s * 1e9)) - times.begin();
  };
  EXPECT_EQ(calls_until(5), 100 * 5 + 20 * 25 / 2);  // The integral of 100 + 20 t.
  EXPECT_EQ(calls_until(10), 2000);
  EXPECT_EQ(calls_until(11), 2300);  // Constant after the ramp.
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
}

TEST(ArrivalsTest, RampsGoDownToo) {
  const ArrivalPlan plan = {.rate = {.from = 300, .to = 100, .ramp_ns = 10'000'000'000}};
  const std::vector<int64_t> times = Take(plan, 2001);
  EXPECT_NEAR(static_cast<double>(times[2000]), 10e9, 1);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
}

TEST(ArrivalsTest, ReplaysOverAndOver) {
  EXPECT_THAT(Take({.replay_gaps_ns = {5, 0, 10}}, 7), ElementsAre(5, 5, 15, 20, 20, 30, 35));
}

TEST(ArrivalsTest, ParsesGaps) {
  const auto gaps = ParseGaps("# recorded\n0.001\n 500us # a comment\n\n0\n2ms");
  ASSERT_THAT(gaps, IsOk());
  EXPECT_THAT(*gaps, ElementsAre(1'000'000, 500'000, 0, 2'000'000));
}

TEST(ArrivalsTest, RefusesBadGaps) {
  for (const char* text : {"x", "-1", "nan", "inf", "1e9", "-2ms"}) {
    EXPECT_THAT(ParseGaps(std::string("1\n") + text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line 2: got ")))
        << text;
  }
  for (const char* text : {"", "0\n0", "# nothing"}) {
    EXPECT_THAT(ParseGaps(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no gap above 0")));
  }
}

}  // namespace
}  // namespace gemmd
