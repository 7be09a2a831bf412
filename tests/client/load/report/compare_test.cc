// SPDX-License-Identifier: Apache-2.0
#include "client/load/report/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "client/matrix/random_matrix.h"
#include "tests/client/load/report/report_sample.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ContainsRegex;
using testing::DoubleEq;
using testing::HasSubstr;

// Tests with random counts use this seed, so that their verdict is the same in each run.
constexpr uint64_t kSeedOfChance = 20260101;

double Unit(RandomSource& random) { return static_cast<double>(random.Bits() >> 11) * 0x1p-53; }

// `calls` exponential times with a mean of 1 ms.
Histogram Exponential(RandomSource& random, int calls) {
  Histogram histogram;
  for (int i = 0; i < calls; ++i) {
    histogram.Record(std::llround(-1e6 * std::log(1 - Unit(random))));
  }
  return histogram;
}

// Exponential times with this mean.
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
  EXPECT_EQ(ParseReport("\x93NUMPY").status().message(),
            "got no JSON, want a report of gemmload --json");
  EXPECT_THAT(ParseReport(R"({"steps": [{"rate_per_s": 1, "rate_per_s": 2}]})"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("steps[0].rate_per_s: got it twice, want each name once")));
  const size_t depth = 200'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  EXPECT_THAT(ParseReport(R"({"steps": )" + deep + "}"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// Of 400 pairs of reports of the same server: intervals of 95 % that do not overlap are those of
// means that differ by 2.77 standard errors, once in 180 times. More than 14 have a probability of
// 1e-7.
void CheckNoise(RandomSource random) {
  SCOPED_TRACE(random.trace());
  for (const double fraction : {0.5, 0.99}) {
    int differ = 0;
    for (int pair = 0; pair < 400; ++pair) {
      const auto estimate = [&] {
        return EstimatePercentile(Exponential(random, 3000), fraction, {});
      };
      differ += !estimate().Overlaps(estimate());
    }
    EXPECT_LE(differ, 14) << fraction;
  }
}

TEST(CompareTest, TheSameServerIsWithinNoise) { CheckNoise(RandomSource(kSeedOfChance)); }

TEST(CompareExhaustive, TheSameServerIsWithinNoise) { CheckNoise(RandomSource()); }

// How often the interval contains the true percentile, -ln(1 - p) of an exponential distribution:
// 1,900 or more of 2,000 intervals; fewer than 1,850 with a probability of 1e-6.
void CheckIntervals(RandomSource random, int intervals) {
  SCOPED_TRACE(random.trace());
  for (const auto& [calls, fraction] :
       {std::pair(20, 0.5), std::pair(500, 0.99), std::pair(5000, 0.5), std::pair(5000, 0.99)}) {
    const double truth = -1e6 * std::log(1 - fraction);
    int held = 0;
    for (int i = 0; i < intervals; ++i) {
      const Estimate estimate = EstimatePercentile(Exponential(random, calls), fraction, {});
      held += estimate.low <= truth && truth <= estimate.high * (1 + 1.0 / 1024);
    }
    EXPECT_GE(held, 0.925 * intervals) << calls << " calls, " << fraction;
  }
}

TEST(CompareTest, IntervalsHoldTheTruth) { CheckIntervals(RandomSource(kSeedOfChance), 500); }

TEST(CompareExhaustive, IntervalsHoldTheTruth) { CheckIntervals(RandomSource(), 2000); }

// Tables of order statistics: of 10 values, the 2nd and the 9th enclose the median with 97.9 %; of
// 100, the 40th and the 61st with 96.5 %.
TEST(CompareTest, RanksAreThoseOfTheBinomialDistribution) {
  EXPECT_EQ(RanksAround(10, 0.5).low, 2);
  EXPECT_EQ(RanksAround(10, 0.5).high, 9);
  EXPECT_EQ(RanksAround(100, 0.5).low, 40);
  EXPECT_EQ(RanksAround(100, 0.5).high, 61);
  // P(fewer than 4 of 5 calls above p99.9 ...): nothing is above so few calls.
  EXPECT_EQ(RanksAround(300, 0.99).high, 301);
  EXPECT_EQ(RanksAround(400, 0.99).high, 400);
  EXPECT_EQ(RanksAround(5, 0.5).low, 0);
  EXPECT_EQ(RanksAround(0, 0.5).high, 1);
  // Where the normal distribution takes over, neither end jumps.
  const RankInterval exact = RanksAround(3599, 0.5);
  const RankInterval normal = RanksAround(3602, 0.5);
  EXPECT_LE(std::abs(normal.low - exact.low), 3);
  EXPECT_LE(std::abs(normal.high - exact.high), 4);
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

TEST(CompareTest, TooFewCallsLeaveAnEndOpen) {
  Histogram few;
  few.Record(1000, 50);
  EXPECT_TRUE(std::isinf(EstimatePercentile(few, 0.99, {}).high));
  EXPECT_EQ(EstimatePercentile(few, 0.99, {}).low, 1000);
  EXPECT_EQ(EstimatePercentile(few, 0.5, {}).high, 1000);
  EXPECT_TRUE(std::isinf(EstimatePercentile({}, 0.5, {}).low));
  EXPECT_TRUE(std::isinf(EstimateMean(1, {1, 2}).high));
  ReportStep step = SampleStep("s", 50, [](int64_t) { return 990'000; });
  const ComparedReport a = ParseReport(ReportJson(SampleReport({step})).dump()).value();
  const std::string same = CompareText(a, a).value();
  EXPECT_THAT(same, ContainsRegex("latency p99 +1.00 ms +1.00 ms to [?].*too few calls to tell"));
  EXPECT_THAT(same, ContainsRegex("rate +1000.0/s +[?] to [?].*too few calls to tell"));
  EXPECT_THAT(same, ContainsRegex("latency p50 +1.00 ms +1.00 ms to 1.00 ms.*within noise"));
  // The p99 of the lower one may be anywhere above.
  step = SampleStep("s", 50, [](int64_t) { return 1'990'000; });
  const ComparedReport b = ParseReport(ReportJson(SampleReport({step})).dump()).value();
  EXPECT_THAT(CompareText(b, a).value(), ContainsRegex("latency p99 .*too few calls to tell"));
}

TEST(CompareTest, ADifferenceIsOneWhereIntervalsDoNotOverlap) {
  EXPECT_TRUE((Estimate{5, 4, 6}.Overlaps({7, 6, 8})));
  EXPECT_TRUE((Estimate{7, 6, 8}.Overlaps({5, 4, 6})));
  EXPECT_FALSE((Estimate{5, 4, 5.9}.Overlaps({7, 6, 8})));
  EXPECT_FALSE((Estimate{7, 6, 8}.Overlaps({5, 4, 5.9})));
  EXPECT_TRUE((Estimate{5, 4, HUGE_VAL}.Overlaps({7, 6, 8})));
}

// Intervals without a length have no rate.
TEST(CompareTest, WhatIsNoNumberIsNoDifference) {
  const ReportStep step = SampleStep("s", 500, [](int64_t i) { return 1000 * i; });
  nlohmann::json json = ReportJson(SampleReport({step}));
  for (nlohmann::json& interval : json.at("steps").at(0).at("intervals")) {
    interval["to_s"] = interval["from_s"];
    interval["ok"] = 0;
  }
  const ComparedReport broken = ParseReport(json.dump()).value();
  ASSERT_TRUE(std::isnan(broken.steps.at(0).rates.at(0)));
  EXPECT_THAT(CompareText(broken, broken).value(), ContainsRegex("rate .*not a number"));
}

TEST(CompareTest, ScatterOfIntervalsCounts) {
  Histogram exact;
  exact.Record(1000, 100000);
  EXPECT_EQ(EstimatePercentile(exact, 0.5, {}).low, 1000);
  EXPECT_EQ(EstimatePercentile(exact, 0.5, {}).high, 1000);
  // 1.96 standard errors: the deviation is 115.47, that of the mean of four values half of it.
  const std::vector<double> series = {900, 1100, 1100, 900};
  const double scatter = 1.96 * 115.47 / 2;
  EXPECT_NEAR(EstimatePercentile(exact, 0.5, series).low, 1000 - scatter, 0.01);
  EXPECT_NEAR(EstimatePercentile(exact, 0.5, series).high, 1000 + scatter, 0.01);
  EXPECT_NEAR(EstimateMean(1000, series).low, 1000 - scatter, 0.01);
  EXPECT_NEAR(EstimateMean(1000, series).high, 1000 + scatter, 0.01);
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
  EXPECT_THAT(CompareText(a, a).value(), testing::Not(HasSubstr("failed calls")));
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

// A server that stalled for a fifth of the run.
TEST(CompareTest, IntervalsWithoutAnAnswerCount) {
  ReportStep step = SampleStep("s", 500, [](int64_t) { return 1000; });
  LoadInterval& empty = step.result.intervals[2];
  empty.ok = empty.p50_ns = empty.p99_ns = empty.max_ns = 0;
  const ComparedReport report = ParseReport(ReportJson(SampleReport({step})).dump()).value();
  EXPECT_THAT(report.steps[0].rates, testing::ElementsAre(DoubleEq(1000), DoubleEq(1000), 0,
                                                          DoubleEq(1000), DoubleEq(1000)));
  EXPECT_EQ(report.steps[0].p50_ns.size(), 4);
}

}  // namespace
}  // namespace gemmd
