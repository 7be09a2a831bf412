// SPDX-License-Identifier: Apache-2.0
#include "client/load/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/splitmix.h"
#include "tests/client/load/report_sample.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// Exponential times of that mean.
std::vector<ComparedStep> Compared(double mean_ns, uint64_t seed, const std::string& name = "s") {
  SplitMix random(seed);
  const ReportStep step = SampleStep(
      name, 5000, [&](int64_t) { return std::llround(-mean_ns * std::log(random.Unit())); });
  return ParseReport(ReportJson(SampleReport({step})).dump()).value();
}

TEST(CompareTest, ReadsBackWhatAReportSays) {
  const ReportStep step = SampleStep("s", 500, [](int64_t i) { return 1000 * i; });
  const auto steps = ParseReport(ReportJson(SampleReport({step})).dump());
  ASSERT_THAT(steps, IsOk());
  ASSERT_EQ(steps->size(), 1);
  const ComparedStep& read = (*steps)[0];
  EXPECT_EQ(read.name, "s");
  EXPECT_EQ(read.rate, 1000);
  EXPECT_EQ(read.rates.size(), 5);
  for (const double fraction : {0.0, 0.5, 0.9, 0.99, 1.0}) {
    EXPECT_EQ(read.latency.ValueAt(fraction), step.result.tally.latency.ValueAt(fraction));
    EXPECT_EQ(read.service.ValueAt(fraction), step.result.tally.service.ValueAt(fraction));
  }
}

TEST(CompareTest, RefusesOtherFiles) {
  for (const char* text : {"", "{}", "[]", R"({"steps": []})", R"({"steps": [{"name": 3}]})"}) {
    EXPECT_THAT(ParseReport(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(CompareTest, TheSameServerIsWithinNoise) {
  int differ = 0;
  constexpr int kPairs = 40;
  for (uint64_t pair = 0; pair < kPairs; ++pair) {
    const Estimate a = EstimatePercentile(Compared(1e6, 2 * pair + 1)[0].latency, 0.99, {});
    const Estimate b = EstimatePercentile(Compared(1e6, 2 * pair + 2)[0].latency, 0.99, {});
    ASSERT_TRUE(a.has_noise);
    differ += !(std::fabs(a.value - b.value) <= std::hypot(a.noise, b.noise));
  }
  // 5 % of them are expected to; more than 8 of 40 happen once in 2,000 times.
  EXPECT_LE(differ, 8);
}

TEST(CompareTest, AChangeIsBeyondIt) {
  const auto text = CompareText(Compared(1e6, 1), Compared(1.2e6, 2));
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(*text, ContainsRegex("latency p50 .*\\+[12][0-9]\\.[0-9] %.*higher"));
  EXPECT_THAT(*text, ContainsRegex("service p99 .*higher"));
  EXPECT_THAT(*text, ContainsRegex("rate .*within noise"));
  const auto back = CompareText(Compared(1.2e6, 2), Compared(1e6, 1));
  EXPECT_THAT(back.value(), ContainsRegex("latency p50 .*lower"));
}

TEST(CompareTest, TooFewCallsHaveNoNoise) {
  Histogram few;
  few.Record(1000, 50);
  EXPECT_FALSE(EstimatePercentile(few, 0.99, {}).has_noise);
  EXPECT_TRUE(EstimatePercentile(few, 0.5, {}).has_noise);
  EXPECT_FALSE(EstimateMean(1, {1, 2}).has_noise);
}

TEST(CompareTest, ScatterOfIntervalsCounts) {
  Histogram exact;
  exact.Record(1000, 100000);
  EXPECT_EQ(EstimatePercentile(exact, 0.5, {}).noise, 0);
  // 1.96 standard errors: deviation 100, of the mean of four 50.
  const std::vector<double> series = {900, 1100, 1100, 900};
  EXPECT_NEAR(EstimatePercentile(exact, 0.5, series).noise, 1.96 * 115.47 / 2, 0.01);
  EXPECT_NEAR(EstimateMean(1000, series).noise, 1.96 * 115.47 / 2, 0.01);
}

TEST(CompareTest, StepsMeetByName) {
  std::vector<ComparedStep> a = Compared(1e6, 1, "one");
  a.push_back(Compared(1e6, 2, "two")[0]);
  std::vector<ComparedStep> b = Compared(1e6, 3, "two");
  b.push_back(Compared(1e6, 4, "three")[0]);
  const auto text = CompareText(a, b);
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(*text, HasSubstr("two"));
  EXPECT_THAT(*text, testing::Not(HasSubstr("one")));
  b.erase(b.begin());
  EXPECT_THAT(CompareText(a, b), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace gemmd
