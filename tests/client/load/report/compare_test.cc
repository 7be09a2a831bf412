// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/matrix/splitmix.h"
#include "tests/client/load/report/report_sample.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ContainsRegex;
using testing::DoubleEq;
using testing::HasSubstr;

// Exponential times of that mean.
ComparedReport Compared(double mean_ns, uint64_t seed, const std::string& name = "s") {
  SplitMix random(seed);
  const ReportStep step = SampleStep(
      name, 5000, [&](int64_t) { return std::llround(-mean_ns * std::log(random.Unit())); });
  return ParseReport(ReportJson(SampleReport({step})).dump()).value();
}

TEST(CompareTest, ReadsBackWhatAReportSays) {
  const ReportStep step = SampleStep("s", 500, [](int64_t i) { return 1000 * i; });
  const auto report = ParseReport(ReportJson(SampleReport({step})).dump());
  ASSERT_THAT(report, IsOk());
  ASSERT_EQ(report->steps.size(), 1);
  const ComparedStep& read = report->steps[0];
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
  const size_t depth = 200'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  EXPECT_THAT(ParseReport(R"({"steps": )" + deep + "}"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CompareTest, TheSameServerIsWithinNoise) {
  int differ = 0;
  constexpr int kPairs = 40;
  for (uint64_t pair = 0; pair < kPairs; ++pair) {
    const Estimate a = EstimatePercentile(Compared(1e6, 2 * pair + 1).steps[0].latency, 0.99, {});
    const Estimate b = EstimatePercentile(Compared(1e6, 2 * pair + 2).steps[0].latency, 0.99, {});
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
  ComparedReport a = Compared(1e6, 1, "one");
  a.steps.push_back(Compared(1e6, 2, "two").steps[0]);
  ComparedReport b = Compared(1e6, 3, "two");
  b.steps.push_back(Compared(1e6, 4, "three").steps[0]);
  const auto text = CompareText(a, b);
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(*text, HasSubstr("two  "));
  EXPECT_THAT(*text, HasSubstr("only in a: one\nonly in b: three\n"));
  EXPECT_THAT(*text, testing::Not(HasSubstr("one  ")));
  b.steps.erase(b.steps.begin());
  EXPECT_THAT(CompareText(a, b), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CompareTest, StepsOfOneNameMeetInTheirOrder) {
  ComparedReport a = Compared(1e6, 1, "s");
  a.steps.push_back(Compared(9e6, 2, "s").steps[0]);
  const auto text = CompareText(a, a);
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(*text, testing::Not(HasSubstr("higher")));
  EXPECT_THAT(*text, testing::Not(HasSubstr("lower")));
}

TEST(CompareTest, NamesOtherSettingsAndCounts) {
  ReportStep step = SampleStep("s", 500, [](int64_t) { return 1000; });
  LoadReport report = SampleReport({step});
  const ComparedReport a = ParseReport(ReportJson(report).dump()).value();
  EXPECT_THAT(CompareText(a, a).value(), testing::Not(HasSubstr("differs")));
  EXPECT_THAT(CompareText(a, a).value(), testing::Not(HasSubstr("calls")));
  report.mix = "other.json";
  report.arrivals = "closed loop";
  CallSample failed;
  failed.code = absl::StatusCode::kUnavailable;
  report.steps[0].result.tally.Add(failed);
  report.steps[0].result.unsent = 7;
  report.steps[0].verified.wrong = 3;
  const std::string text = CompareText(a, ParseReport(ReportJson(report).dump()).value()).value();
  EXPECT_THAT(text, ContainsRegex("mix +<a&b>.json +other.json"));
  EXPECT_THAT(text, ContainsRegex("arrivals .*closed loop"));
  EXPECT_THAT(text, ContainsRegex("failed calls +0 +1 +higher"));
  EXPECT_THAT(text, ContainsRegex("unsent calls +0 +7 +higher"));
  EXPECT_THAT(text, ContainsRegex("wrong answers +0 +3 +higher"));
}

// A server that stood still for a fifth of the run.
TEST(CompareTest, IntervalsWithoutAnAnswerCount) {
  ReportStep step = SampleStep("s", 500, [](int64_t) { return 1000; });
  LoadInterval& empty = step.result.intervals[2];
  empty.ok = empty.p50_ns = empty.p99_ns = empty.most_ns = 0;
  const ComparedReport report = ParseReport(ReportJson(SampleReport({step})).dump()).value();
  EXPECT_THAT(report.steps[0].rates, testing::ElementsAre(DoubleEq(1000), DoubleEq(1000), 0,
                                                          DoubleEq(1000), DoubleEq(1000)));
  EXPECT_EQ(report.steps[0].p50_ns.size(), 4);
}

}  // namespace
}  // namespace gemmd
