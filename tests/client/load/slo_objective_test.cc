// SPDX-License-Identifier: Apache-2.0
#include "client/load/slo_objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/load/slo_search.h"
#include "tests/client/load/report/report_sample.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

// A window of the rule: its verdict and why.
SloWindow Judge(const SloObjective& objective, const StepResult& window,
                const VerifierCounts& verified = {}) {
  return JudgeWindow(objective, 1000, window, verified);
}

StepResult Window(int64_t calls, const std::function<int64_t(int64_t call)>& service_ns) {
  return SampleStep("s", calls, service_ns).result;
}

CallSample Failed(absl::StatusCode code) {
  CallSample sample;
  sample.code = code;
  return sample;
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
  const StepResult good = Window(1000, [](int64_t i) { return i < 5 ? 50'000'000 : 1'000'000; });
  const SloWindow held = Judge(objective, good);
  EXPECT_EQ(held.verdict, WindowVerdict::kHolds) << held.what;
  EXPECT_EQ(held.rate, 1000);
  EXPECT_EQ(held.what, "1.01 ms");
  const auto fails = [&](const StepResult& window, const char* why) {
    const SloWindow judged = Judge(objective, window);
    EXPECT_EQ(judged.verdict, WindowVerdict::kFails) << why;
    EXPECT_THAT(judged.what, HasSubstr(why));
  };
  fails(Window(1000, [](int64_t i) { return i < 11 ? 50'000'000 : 1'000'000; }),
        "where 2.00 ms is allowed");
  StepResult behind = good;
  behind.rate = 980;
  fails(behind, "980.0/s of 1000.0/s offered");
  StepResult failed = good;
  for (int i = 0; i < 3; ++i) failed.tally.Add(Failed(absl::StatusCode::kUnavailable));
  failed.first_messages[absl::StatusCode::kUnavailable] = "queue full";
  fails(failed, "failed calls: 3 of 1,003 (UNAVAILABLE 3); queue full");
  StepResult unsent = good;
  unsent.unsent = 1;
  fails(unsent, "never sent");
  fails({}, "no call");
}

TEST(SloTest, WhatNoRateMendsEndsTheSearch) {
  const SloObjective objective = ParseSlo("p99=2ms").value();
  const StepResult good = Window(1000, [](int64_t) { return 1'000'000; });
  const SloWindow wrong = Judge(objective, good, {.checked = 9, .wrong = 2});
  EXPECT_EQ(wrong.verdict, WindowVerdict::kHopeless);
  EXPECT_EQ(wrong.what, "wrong answers: 2 of 9 checked");
  StepResult refused;
  refused.tally.Add(Failed(absl::StatusCode::kNotFound));
  EXPECT_EQ(Judge(objective, refused).verdict, WindowVerdict::kHopeless);
  // An overloaded server may say these, and one that answers some calls knows the kernel.
  StepResult overloaded;
  overloaded.tally.Add(Failed(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(Judge(objective, overloaded).verdict, WindowVerdict::kFails);
  StepResult mixed = good;
  mixed.tally.Add(Failed(absl::StatusCode::kNotFound));
  EXPECT_EQ(Judge(objective, mixed).verdict, WindowVerdict::kFails);
}

// A call that is due at 0, sent `late_ns` later and answered 1 ms after that.
CallSample Late(int64_t late_ns) {
  CallSample sample;
  sample.sent_ns = late_ns;
  sample.ended_ns = late_ns + 1'000'000;
  return sample;
}

TEST(SloTest, WindowsInWhichTheClientIsTheLimitAreDiscarded) {
  const SloObjective objective = ParseSlo("p99=2ms").value();
  const StepResult good = Window(1000, [](int64_t) { return 1'000'000; });
  const StepResult slow = Window(1000, [](int64_t) { return 3'000'000; });
  StepResult late = good;
  for (int i = 0; i < 20; ++i) late.tally.Add(Late(1'500'000));
  const SloWindow judged = Judge(objective, late);
  EXPECT_EQ(judged.verdict, WindowVerdict::kDiscarded);
  EXPECT_EQ(judged.what, "the client is the limit: the client sent calls up to 1.50 ms late");
  // Too few to matter: it holds.
  StepResult seldom = good;
  for (int i = 0; i < 5; ++i) seldom.tally.Add(Late(1'500'000));
  EXPECT_EQ(Judge(objective, seldom).verdict, WindowVerdict::kHolds);
  // A server that is too slow is, whether or not a few calls were sent a little late.
  StepResult both = slow;
  for (int i = 0; i < 20; ++i) both.tally.Add(Late(300'000));
  EXPECT_EQ(Judge(objective, both).verdict, WindowVerdict::kFails);
  // Nobody knows what a server would do that got its calls in bursts.
  StepResult bursts = slow;
  for (int i = 0; i < 20; ++i) bursts.tally.Add(Late(1'100'000));
  EXPECT_EQ(Judge(objective, bursts).verdict, WindowVerdict::kDiscarded);
  StepResult busy = slow;
  busy.client_cores = 1.7;
  EXPECT_EQ(Judge(objective, busy).verdict, WindowVerdict::kDiscarded);
  EXPECT_THAT(Judge(objective, busy).what, HasSubstr("kept 1.7 of 2 cores busy"));
  busy = good;
  busy.client_cores = 1.7;
  EXPECT_EQ(Judge(objective, busy).verdict, WindowVerdict::kHolds);
}

// A server of 5 ms at 10/s: the last of 11 calls is in flight where the window ends.
TEST(SloTest, ACallAtTheEdgeBreaksNothing) {
  const SloObjective objective = ParseSlo("p90=20ms").value();
  StepResult window = Window(11, [](int64_t) { return 5'000'000; });
  window.window_s = 1.1;
  window.offered = 10;
  window.rate = 10 / 1.1;
  EXPECT_EQ(Judge(objective, window).verdict, WindowVerdict::kHolds);
  window.rate = 9 / 1.1;
  EXPECT_THAT(Judge(objective, window).what, HasSubstr("of 10.0/s offered"));
}

TEST(SloTest, APercentileNeedsCallsBeyondIt) {
  EXPECT_EQ(LeastCalls(ParseSlo("p50=1ms").value()), 2);
  EXPECT_EQ(LeastCalls(ParseSlo("p90=1ms").value()), 10);
  EXPECT_EQ(LeastCalls(ParseSlo("p99=1ms").value()), 100);
  EXPECT_EQ(LeastCalls(ParseSlo("p99.99=1ms").value()), 10000);
  const SloObjective objective = ParseSlo("p99=20ms").value();
  const SloWindow few = Judge(objective, Window(99, [](int64_t) { return 1'000'000; }));
  EXPECT_EQ(few.verdict, WindowVerdict::kFails);
  EXPECT_EQ(few.what, "only 99 calls, 100 are needed");
  // Windows are so long that there are enough.
  EXPECT_DOUBLE_EQ(SloPlan().WindowAt(1000, objective), SloPlan().window_s);
  EXPECT_DOUBLE_EQ(SloPlan().WindowAt(2, objective), 75);
}

}  // namespace
}  // namespace gemmd
