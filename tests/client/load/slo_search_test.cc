// SPDX-License-Identifier: Apache-2.0
//
// The search against simulated servers: how close it comes to their highest rate, whatever disturbs
// single windows.
#include "client/load/slo_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/client/load/report/report_sample.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

// The rule for a window: its verdict and the reason.
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
  // An overloaded server may return these, and a server that answers some calls knows the kernel.
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
  // Too few to matter: the objective holds.
  StepResult seldom = good;
  for (int i = 0; i < 5; ++i) seldom.tally.Add(Late(1'500'000));
  EXPECT_EQ(Judge(objective, seldom).verdict, WindowVerdict::kHolds);
  // A server that is too slow fails, whether or not a few calls were sent slightly late.
  StepResult both = slow;
  for (int i = 0; i < 20; ++i) both.tally.Add(Late(300'000));
  EXPECT_EQ(Judge(objective, both).verdict, WindowVerdict::kFails);
  // It is not known how the server would behave if its calls had not come in bursts.
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

// A server of 5 ms at 10/s: the last of 11 calls is in flight when the window ends.
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
  EXPECT_EQ(MinCalls(ParseSlo("p50=1ms").value()), 2);
  EXPECT_EQ(MinCalls(ParseSlo("p90=1ms").value()), 10);
  EXPECT_EQ(MinCalls(ParseSlo("p99=1ms").value()), 100);
  EXPECT_EQ(MinCalls(ParseSlo("p99.99=1ms").value()), 10000);
  const SloObjective objective = ParseSlo("p99=20ms").value();
  const SloWindow few = Judge(objective, Window(99, [](int64_t) { return 1'000'000; }));
  EXPECT_EQ(few.verdict, WindowVerdict::kFails);
  EXPECT_EQ(few.what, "only 99 calls, 100 are needed");
  // Windows are long enough for enough calls.
  EXPECT_DOUBLE_EQ(SloPlan().WindowAt(1000, objective), SloPlan().window_s);
  EXPECT_DOUBLE_EQ(SloPlan().WindowAt(2, objective), 75);
}

using End = SloAnswer::End;

// Tests with random counts use this seed, so that their verdict is the same in each run. The
// exhaustive run uses another seed each time; a bound fails in one of several hundred thousand such
// runs.
constexpr uint64_t kSeed = 20260101;

double Unit(RandomSource& random) { return static_cast<double>(random.Bits() >> 11) * 0x1p-53; }

// A queue whose p99 grows as 1 / (1 - load), with an objective of four times its minimum p99: that
// holds up to three quarters of the capacity.
struct SimulatedServer {
  RandomSource& random;
  double highest = 1000;      // The highest rate at which the objective holds.
  double noise = 0;           // Standard deviation of the logarithm of a window's p99.
  double glitches = 0;        // Share of the windows that another cause makes fail.
  double late_client = 0;     // Share of the windows in which the client is the limit.
  double client_limit = 1e9;  // The rate above which it always is.
  int early_windows = 0;      // The windows at the beginning that have another capacity,
  double early_share = 0.1;   // this share of it.
  int windows = 0;

  std::optional<SloWindow> operator()(double rate) {
    const bool is_early = windows++ < early_windows;
    const double load = rate / (is_early ? highest * early_share : highest) * 0.75;
    const double p99 = load < 1 ? std::exp(noise * random.Normal()) / (1 - load) : 1e9;
    if (rate > client_limit || Unit(random) < late_client) {
      return SloWindow{rate, WindowVerdict::kDiscarded};
    }
    const bool holds = p99 <= 4 && Unit(random) >= glitches;
    return SloWindow{rate, holds ? WindowVerdict::kHolds : WindowVerdict::kFails};
  }
};

SloAnswer Search(SimulatedServer& server, const SloPlan& plan = {}) {
  return SearchRate(plan, [&](double rate) { return server(rate); });
}

// A random rate between a hundredth and a hundred times the first rate.
double AnyRate(RandomSource& random) { return 100 * std::pow(10, 4 * Unit(random) - 2); }

TEST(SloSearchTest, FindsTheHighestRateOfAServerWithoutNoise) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const double highest : {3.0, 99.0, 100.0, 101.0, 250.0, 12345.0, 3e6}) {
    SimulatedServer server = {.random = random, .highest = highest};
    const SloAnswer answer = Search(server);
    ASSERT_EQ(answer.end, End::kFound) << highest;
    EXPECT_NEAR(answer.rate / highest, 1, 0.05);
    EXPECT_LE(answer.low, highest);
    EXPECT_GE(answer.high, highest);
    EXPECT_LE(answer.windows.size(), 40U) << highest;
  }
}

// A busy machine: p99 scatters by 20 %, another cause breaks a tenth of the windows, and in another
// tenth the client is late.
SimulatedServer BusyServer(RandomSource& random, double highest) {
  return {.random = random, .highest = highest, .noise = 0.2, .glitches = 0.1, .late_client = 0.1};
}

void CheckThatSearchesAgree(RandomSource random, int servers) {
  SCOPED_TRACE(random.trace());
  int found = 0;
  int covered = 0;
  int far_off = 0;
  int apart = 0;
  int wrong_ends = 0;
  for (int i = 0; i < servers; ++i) {
    const double highest = AnyRate(random);
    double least = HUGE_VAL;
    double most = 0;
    for (int run = 0; run < 3; ++run) {
      SimulatedServer server = BusyServer(random, highest);
      const SloAnswer answer = Search(server);
      // A search that is not sure says so. No rate below one a second is tried: a server that just
      // holds at that rate may look like one that never holds.
      if (answer.end != End::kFound) {
        wrong_ends += answer.is_conclusive() && !(answer.end == End::kNoRate && highest <= 1.15);
        continue;
      }
      ++found;
      covered += answer.low <= highest && highest <= answer.high;
      far_off += !(std::fabs(std::log(answer.rate / highest)) <= std::log(1.15));
      least = std::min(least, answer.rate);
      most = std::max(most, answer.rate);
    }
    apart += most > 1.15 * least;
  }
  // Of 12,000 such searches on another machine, 11,886 found a rate, 11,750 intervals contained the
  // truth, 29 rates were off by more than 15 %, the rates of 82 of 4,000 servers were further
  // apart, and no search wrongly reported that there is none.
  EXPECT_GE(found, 0.9 * 3 * servers);
  EXPECT_GE(covered, 0.9 * found);
  EXPECT_LE(far_off, 0.065 * servers);
  EXPECT_LE(apart, 0.065 * servers);
  EXPECT_LE(wrong_ends, 0.025 * servers);
}

TEST(SloSearchTest, SearchesOfABusyServerAgree) { CheckThatSearchesAgree(RandomSource(kSeed), 50); }

TEST(SloSearchExhaustive, SearchesOfABusyServerAgree) {
  CheckThatSearchesAgree(RandomSource(), 200);
}

// An interval that is narrow enough is an answer, even if the last windows do not decide its ends.
void CheckNarrowIntervals(RandomSource random) {
  SCOPED_TRACE(random.trace());
  int found = 0;
  int covered = 0;
  int narrow = 0;
  for (int i = 0; i < 60; ++i) {
    SimulatedServer server = BusyServer(random, 500);
    server.noise = 0.4;
    const SloAnswer answer = Search(server);
    found += answer.end == End::kFound;
    covered += answer.end == End::kFound && answer.low <= 500 && 500 <= answer.high;
    narrow += answer.end == End::kTooNoisy && answer.high <= kSloWidth * answer.low;
  }
  // Of 1,000 such searches, 952 found a rate, and 899 intervals contained the truth.
  EXPECT_GE(found, 45);
  EXPECT_GE(covered, 0.8 * found);
  EXPECT_LE(narrow, 6);
}

TEST(SloSearchTest, AnIntervalThatIsNarrowEnoughIsAnAnswer) {
  CheckNarrowIntervals(RandomSource(kSeed));
}

TEST(SloSearchExhaustive, AnIntervalThatIsNarrowEnoughIsAnAnswer) {
  CheckNarrowIntervals(RandomSource());
}

TEST(SloSearchTest, NoOneWindowDecides) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  // Whichever window of a search a stall breaks, the answer stays the same.
  for (int broken = 0; broken < 30; ++broken) {
    SimulatedServer server = {.random = random, .highest = 2000};
    int window = 0;
    const SloAnswer answer = SearchRate({}, [&](double rate) {
      std::optional<SloWindow> made = server(rate);
      if (window++ == broken) made->verdict = WindowVerdict::kFails;
      return made;
    });
    ASSERT_EQ(answer.end, End::kFound) << broken;
    EXPECT_NEAR(answer.rate / 2000, 1, 0.06) << broken;
  }
}

TEST(SloSearchTest, GoesUpAgainOnceTheMachineIsIdle) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const int busy_windows : {1, 3, 5, 8, 10}) {
    SimulatedServer server = {.random = random, .highest = 3200, .early_windows = busy_windows};
    const SloAnswer answer = Search(server);
    ASSERT_EQ(answer.end, End::kFound) << busy_windows;
    EXPECT_NEAR(answer.rate / 3200, 1, 0.06) << busy_windows;
  }
}

TEST(SloSearchTest, GoesDownAgainOnceTheMachineIsBusy) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const int idle_windows : {1, 3, 5, 8, 10}) {
    SimulatedServer server = {
        .random = random, .highest = 320, .early_windows = idle_windows, .early_share = 10};
    const SloAnswer answer = Search(server);
    ASSERT_EQ(answer.end, End::kFound) << idle_windows;
    EXPECT_NEAR(answer.rate / 320, 1, 0.06) << idle_windows;
  }
}

TEST(SloSearchTest, NeverClaimsMoreThanTheClientCanSend) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const double client_limit : {50.0, 100.0, 500.0, 5000.0}) {
    SimulatedServer server = {.random = random, .highest = 1e6, .client_limit = client_limit};
    const SloAnswer answer = Search(server);
    EXPECT_EQ(answer.end, End::kClientLimit) << client_limit;
    EXPECT_FALSE(answer.is_conclusive());
    EXPECT_LE(answer.rate, client_limit);
    EXPECT_GE(answer.rate, client_limit / 1.3);
    EXPECT_GE(answer.discarded(), 3);
  }
  SimulatedServer server = {.random = random, .highest = 1e6, .client_limit = 0};
  const SloAnswer answer = Search(server);
  EXPECT_EQ(answer.end, End::kClientLimit);
  EXPECT_EQ(answer.rate, 0);
  EXPECT_EQ(answer.discarded(), static_cast<int64_t>(answer.windows.size()));
  // At one call a second, a single window for a p99 would take five minutes.
  EXPECT_EQ(answer.windows.size(), 12U);
  EXPECT_GT(answer.windows.back().rate, 5);
}

TEST(SloSearchTest, EndsWhereNothingOrEverythingHolds) {
  RandomSource random;
  SimulatedServer nothing = {.random = random, .highest = 1e-9};
  const SloAnswer none = Search(nothing);
  EXPECT_EQ(none.end, End::kNoRate);
  EXPECT_EQ(none.rate, 0);
  EXPECT_TRUE(none.is_conclusive());
  EXPECT_LE(none.windows.size(), 12U);
  SimulatedServer everything = {.random = random, .highest = 1e12};
  const SloAnswer all = Search(everything);
  EXPECT_EQ(all.end, End::kEveryRate);
  EXPECT_DOUBLE_EQ(all.rate, SloPlan().last_rate);
  // The first requested rate may be less than one call a second.
  SimulatedServer slow = {.random = random, .highest = 0.7};
  const SloAnswer found = Search(slow, {.first_rate = 0.5});
  EXPECT_EQ(found.end, End::kFound);
  EXPECT_NEAR(found.rate / 0.7, 1, 0.05);
}

void CheckContradictions(RandomSource random) {
  SCOPED_TRACE(random.trace());
  int sure_too_soon = 0;
  for (int i = 0; i < 20; ++i) {
    // Windows hold at random, whatever their rate.
    const SloAnswer answer = SearchRate({}, [&](double rate) -> std::optional<SloWindow> {
      return SloWindow{rate, rate < 300 || (rate < 3000 && random.Flip()) ? WindowVerdict::kHolds
                                                                          : WindowVerdict::kFails};
    });
    sure_too_soon +=
        answer.end == End::kFound && answer.high < 1.25 * answer.low && answer.windows.size() < 20;
    EXPECT_LE(answer.windows.size(), 60U);
  }
  // Random windows are consistent in one search of 200.
  EXPECT_LE(sure_too_soon, 2);
}

TEST(SloSearchTest, SaysThatWindowsContradictEachOther) {
  CheckContradictions(RandomSource(kSeed));
}

TEST(SloSearchExhaustive, SaysThatWindowsContradictEachOther) {
  CheckContradictions(RandomSource());
}

TEST(SloSearchTest, StopsWhenToldAndWhereThereIsNoHope) {
  int tries = 0;
  const SloAnswer stopped = SearchRate({}, [&](double rate) -> std::optional<SloWindow> {
    if (++tries == 3) return std::nullopt;
    return SloWindow{rate, WindowVerdict::kHolds};
  });
  EXPECT_EQ(stopped.end, End::kInterrupted);
  EXPECT_EQ(stopped.windows.size(), 2U);
  EXPECT_GT(stopped.rate, 190);
  const SloAnswer hopeless = SearchRate({}, [&](double rate) -> std::optional<SloWindow> {
    return SloWindow{rate, WindowVerdict::kHopeless, "wrong answers"};
  });
  EXPECT_EQ(hopeless.end, End::kHopeless);
  EXPECT_EQ(hopeless.rate, 0);
  EXPECT_EQ(hopeless.windows.size(), 1U);
}

TEST(SloSearchTest, RatesDoubleAtMost) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (int i = 0; i < 20; ++i) {
    SimulatedServer server = {
        .random = random, .highest = AnyRate(random), .noise = 0.2, .glitches = 0.1};
    double highest = 50;  // The first rate is 100.
    (void)SearchRate({}, [&](double rate) {
      EXPECT_LE(rate, 2.03 * highest);  // Rounded to the nearest step.
      const std::optional<SloWindow> window = server(rate);
      if (window->verdict == WindowVerdict::kHolds) highest = std::max(highest, rate);
      return window;
    });
  }
}

}  // namespace
}  // namespace gemmd
