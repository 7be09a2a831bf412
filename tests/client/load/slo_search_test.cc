// SPDX-License-Identifier: Apache-2.0
#include "client/load/slo_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/load/report/report_sample.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

// A server that keeps up to a rate and not beyond it.
std::vector<SloTrial> SearchKnee(double knee, const SloPlan& plan = {}) {
  return SearchRate(plan, [&](double rate) {
    return std::optional<SloTrial>({.rate = rate, .holds = rate <= knee});
  });
}

TEST(SloSearchTest, FindsTheKnee) {
  for (const double knee : {3.0, 99.0, 100.0, 101.0, 250.0, 12345.0, 3e6}) {
    const std::vector<SloTrial> trials = SearchKnee(knee);
    const double found = HighestThatHolds(trials);
    EXPECT_LE(found, knee);
    EXPECT_GE(found * 1.05, knee);
    EXPECT_LE(trials.size(), 40U) << knee;
  }
}

TEST(SloSearchTest, EndsWhereNothingOrEverythingHolds) {
  EXPECT_EQ(HighestThatHolds(SearchKnee(0)), 0);
  EXPECT_EQ(HighestThatHolds(SearchKnee(1e12)), SloPlan().last_rate);
}

TEST(SloSearchTest, StopsWhenTold) {
  int tries = 0;
  const auto trials = SearchRate({}, [&](double rate) -> std::optional<SloTrial> {
    if (++tries == 3) return std::nullopt;
    return SloTrial{.rate = rate, .holds = true};
  });
  EXPECT_EQ(trials.size(), 2);
  EXPECT_EQ(HighestThatHolds(trials), 200);
}

TEST(SloTest, ParsesObjectives) {
  const auto slo = ParseSlo("p99.9=500us");
  ASSERT_THAT(slo, IsOk());
  EXPECT_EQ(slo->fraction, 0.999);  // To the last bit: a rank depends on it.
  EXPECT_EQ(slo->limit_ns, 500'000);
  for (const char* text : {"", "p99", "99=2ms", "p=2ms", "p0=2ms", "p100=2ms", "p99=2", "p99=-2ms",
                           "p99=0ms", "p99=inf", "pnan=2ms", "p1e1=2ms", "p9.9.9=2ms", "p.=2ms"}) {
    EXPECT_THAT(ParseSlo(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--slo: ")))
        << text;
  }
}

TEST(SloTest, AWindowMustMeetAllOfTheRule) {
  const SloObjective objective = ParseSlo("p99=2ms").value();
  const StepResult good =
      SampleStep("s", 1000, [](int64_t i) { return i < 5 ? 50'000'000 : 1'000'000; }).result;
  EXPECT_EQ(WhyWindowFails(objective, good, {}), "");
  const StepResult slow =
      SampleStep("s", 1000, [](int64_t i) { return i < 11 ? 50'000'000 : 1'000'000; }).result;
  EXPECT_THAT(WhyWindowFails(objective, slow, {}), HasSubstr("where 2.00 ms is allowed"));
  StepResult behind = good;
  behind.rate = 980;
  EXPECT_THAT(WhyWindowFails(objective, behind, {}), HasSubstr("980.0/s of 1000.0/s offered"));
  StepResult failed = good;
  failed.tally.calls_by_code[14] = 1;
  EXPECT_THAT(WhyWindowFails(objective, failed, {}), HasSubstr("UNAVAILABLE 1"));
  StepResult unsent = good;
  unsent.unsent = 1;
  EXPECT_THAT(WhyWindowFails(objective, unsent, {}), HasSubstr("never sent"));
  EXPECT_EQ(WhyWindowFails(objective, {}, {}), "no call");
  EXPECT_EQ(WhyWindowFails(objective, good, {.checked = 9, .wrong = 2}),
            "wrong answers: 2 of 9 checked");
}

// A server of 5 ms at 10/s: the last of 11 calls is in flight where the window ends.
TEST(SloTest, ACallAtTheEdgeBreaksNothing) {
  const SloObjective objective = ParseSlo("p90=20ms").value();
  StepResult window = SampleStep("s", 11, [](int64_t) { return 5'000'000; }).result;
  window.window_s = 1.1;
  window.offered = 10;
  window.rate = 10 / 1.1;
  EXPECT_EQ(WhyWindowFails(objective, window, {}), "");
  window.rate = 9 / 1.1;
  EXPECT_THAT(WhyWindowFails(objective, window, {}), HasSubstr("of 10.0/s offered"));
}

TEST(SloTest, APercentileNeedsCallsBeyondIt) {
  EXPECT_EQ(LeastCalls(ParseSlo("p50=1ms").value()), 2);
  EXPECT_EQ(LeastCalls(ParseSlo("p90=1ms").value()), 10);
  EXPECT_EQ(LeastCalls(ParseSlo("p99=1ms").value()), 100);
  EXPECT_EQ(LeastCalls(ParseSlo("p99.99=1ms").value()), 10000);
  const SloObjective objective = ParseSlo("p99=20ms").value();
  const StepResult few = SampleStep("s", 99, [](int64_t) { return 1'000'000; }).result;
  EXPECT_EQ(WhyWindowFails(objective, few, {}), "only 99 calls, 100 are needed");
  // Windows are so long that there are enough.
  EXPECT_DOUBLE_EQ(SloPlan().WindowAt(1000, objective), SloPlan().window_s);
  EXPECT_DOUBLE_EQ(SloPlan().WindowAt(2, objective), 75);
}

}  // namespace
}  // namespace gemmd
