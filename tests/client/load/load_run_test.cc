// SPDX-License-Identifier: Apache-2.0
//
// Loads against servers with known delays. Other work on the machine only adds time, so latencies
// are compared with the minimum that the server's delays imply; upper bounds on an idle machine
// belong to the timed run.
#include "client/load/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>

#include "gemmd/v1/gemm.pb.h"
#include "tests/client/fake_service.h"
#include "tests/client/load/delayed_server.h"
#include "tests/client/load/load_run_fixture.h"
#include "tests/testing/timed.h"

namespace gemmd {
namespace {

double Ms(int64_t ns) { return static_cast<double>(ns) / static_cast<double>(kMs); }

class LoadRunTimed : public LoadRunTest {};

// 250 calls a second, of which none is answered in the first 400 ms. With at most two calls in
// flight, only two are sent meanwhile, and clocks that start at the actual send see only these two.
TEST_F(LoadRunTest, AStallShowsInLatencyFromTheIntendedSend) {
  DelayedServer server({.is_held = true});
  SetRate(250, 2);
  step_.count = 100;
  step_.duration_ns = 3600'000 * kMs;
  progress_ = [&](const LoadInterval& interval, const IntervalTally& /*calls*/) {
    if (interval.to_ns >= 400 * kMs) server.Release();
  };
  const StepResult result = Run({server.address()});
  ASSERT_EQ(result.tally.ok(), 100);
  EXPECT_EQ(result.unsent, 0);
  EXPECT_EQ(result.max_in_flight, 2);
  // The fiftieth was due at 196 ms.
  EXPECT_GE(result.tally.latency.CountAbove(200 * kMs), 50);
  EXPECT_GE(result.tally.latency.max_ns(), 400 * kMs);
  // The time that a clock starting at the send hides is reported separately.
  EXPECT_GE(result.tally.blocked.CountAbove(200 * kMs), 48);
}

// Without a limit every call is sent, however many are in progress.
TEST_F(LoadRunTest, WithoutALimitNothingIsBlocked) {
  DelayedServer server({.is_held = true});
  SetRate(500);
  step_.count = 200;
  step_.duration_ns = 3600'000 * kMs;
  progress_ = [&](const LoadInterval& interval, const IntervalTally& /*calls*/) {
    if (interval.in_flight == 200) server.Release();
  };
  const StepResult result = Run({server.address()});
  ASSERT_EQ(result.tally.ok(), 200);
  EXPECT_EQ(result.max_in_flight, 200);
  EXPECT_EQ(result.tally.blocked.max_ns(), 0);
  // The hundredth was due 200 ms before the last.
  EXPECT_GE(result.tally.latency.CountAbove(199 * kMs), 100);
}

// For 2 s against a server that stalls for 400 ms: the 100 calls due meanwhile wait for its end,
// which takes a uniform 0 to 400 ms for a fifth of all calls.
TEST_F(LoadRunTimed, AStallShowsInTheCorrectedPercentiles) {
  const DelayedServer server({.stall_at_call = 200, .stall = absl::Milliseconds(400)});
  SetRate(250, 2);
  step_.duration_ns = 2000 * kMs;
  const StepResult result = Run({server.address()});
  ASSERT_EQ(result.tally.ok() + result.unsent, 500);
  // Eight calls out of ten were not affected.
  HoldsTimed("p50 of a load with a stall", 80, Ms(result.tally.latency.ValueAt(0.50)), "ms");
  EXPECT_GE(result.tally.latency.ValueAt(0.85), 90 * kMs);
  EXPECT_GE(result.tally.latency.ValueAt(0.90), 190 * kMs);
  EXPECT_GE(result.tally.latency.ValueAt(0.99), 370 * kMs);
  EXPECT_GE(result.tally.latency.max_ns(), 390 * kMs);
  HoldsTimed("p99 from the send, with a stall", 200, Ms(result.tally.service.ValueAt(0.99)), "ms");
  // The time that the other clock hides is reported separately.
  EXPECT_GE(result.tally.blocked.ValueAt(0.90), 150 * kMs);
  EXPECT_EQ(result.max_in_flight, 2);
}

// Without a limit every call is sent on time, and both clocks see the stall.
TEST_F(LoadRunTimed, WithoutALimitBothClocksSeeAStall) {
  const DelayedServer server({.stall_at_call = 400, .stall = absl::Milliseconds(400)});
  SetRate(500);
  step_.duration_ns = 2000 * kMs;
  const StepResult result = Run({server.address()});
  ASSERT_EQ(result.tally.ok(), 1000);
  EXPECT_GE(result.tally.latency.ValueAt(0.90), 190 * kMs);
  EXPECT_GE(result.tally.service.ValueAt(0.99), 350 * kMs);
  EXPECT_EQ(result.tally.blocked.max_ns(), 0);
  HoldsTimedAtLeast("calls under way at the end of a stall", 190,
                    static_cast<double>(result.max_in_flight), "calls");
}

TEST_F(LoadRunTest, LatencyIsNotBelowTheServersDelay) {
  const DelayedServer server({.delay = absl::Milliseconds(20)});
  step_.loop = ClosedLoop{.concurrency = 3};
  step_.count = 60;
  step_.duration_ns = 3600'000 * kMs;
  const StepResult result = Run({server.address()});
  EXPECT_GE(result.tally.service.min_ns(), 20 * kMs);
  EXPECT_GE(result.tally.latency.min_ns(), result.tally.service.min_ns());
  EXPECT_EQ(result.max_in_flight, 3);
  // At most one call per turn and delay.
  EXPECT_LE(result.rate, 3 / 0.020);
  EXPECT_GT(result.rate, 0);
  EXPECT_EQ(result.tally.stages[kCompute].max_ns(), 1000);
  EXPECT_EQ(result.tally.stages[kTotal].max_ns(), 1500);
}

TEST_F(LoadRunTest, AWindowIsAsLongAsWasAskedFor) {
  const DelayedServer server({});
  step_.duration_ns = 200 * kMs;
  EXPECT_NEAR(Run({server.address()}).window_s, 0.2, 1e-9);
}

TEST_F(LoadRunTest, CallsOfTheWarmUpAreNotCounted) {
  const FakeServer server(ComputingScript());
  SetRate(100);
  step_.warmup_ns = 200 * kMs;
  step_.duration_ns = 300 * kMs;
  const StepResult result = Run({server.address()});
  EXPECT_EQ(result.tally.ok(), 30);
  EXPECT_EQ(result.tally.latency.count(), 30);
  EXPECT_EQ(server.multiply_calls(), 50);
}

TEST_F(LoadRunTimed, WarmUpIsLeftOut) {
  const DelayedServer server(
      {.delay = absl::ZeroDuration(), .early_calls = 50, .early_delay = absl::Milliseconds(300)});
  SetRate(100);
  step_.warmup_ns = 500 * kMs;
  step_.duration_ns = 500 * kMs;
  int64_t warmup_calls = 0;
  progress_ = [&](const LoadInterval& interval, const IntervalTally& /*calls*/) {
    if (interval.to_ns <= 0) warmup_calls += interval.ok;
  };
  const StepResult result = Run({server.address()});
  EXPECT_EQ(result.tally.ok(), 50);
  HoldsTimed("p50 behind a slow warm-up", 290, Ms(result.tally.latency.ValueAt(0.5)), "ms");
  EXPECT_GT(warmup_calls, 0);
  // Calls of the warm-up that end after it count as the server's work in the window.
  HoldsTimedAtLeast("rate behind a slow warm-up", 101, result.rate, "calls/s");
}

TEST_F(LoadRunTest, StopsByCount) {
  const DelayedServer server({});
  step_.count = 137;
  step_.duration_ns = 3600'000 * kMs;
  EXPECT_EQ(Run({server.address()}).tally.ok(), 137);
  targets_.clients.clear();
  SetRate(1000);
  const StepResult open = Run({server.address()});
  EXPECT_EQ(open.tally.ok(), 137);
  // From the first call to the last answer; the last call was due at 136 ms.
  EXPECT_GE(open.window_s, 0.136);
  EXPECT_NEAR(open.rate, 137 / open.window_s, 1e-6);
  EXPECT_NEAR(open.offered, 1000, 0.01);
}

TEST_F(LoadRunTest, ACountEndsWithItsLastAnswer) {
  const DelayedServer server({.delay = absl::Milliseconds(300)});
  step_.count = 20;
  step_.duration_ns = 3600'000 * kMs;
  SetRate(200);
  const StepResult result = Run({server.address()});
  EXPECT_EQ(result.tally.ok(), 20);
  EXPECT_FALSE(result.was_interrupted);
  EXPECT_GE(result.window_s, 0.095 + 0.3);
  EXPECT_NEAR(result.rate, 20 / result.window_s, 1e-6);
  EXPECT_NEAR(result.offered, 200, 0.01);
}

// Half of the calls end after the window: they are due in it, but are not the server's work in it.
TEST_F(LoadRunTest, CallsThatEndAfterTheWindowAreNoPartOfTheRate) {
  const DelayedServer server({.delay = absl::Milliseconds(500)});
  SetRate(100);
  step_.duration_ns = 1000 * kMs;
  const StepResult result = Run({server.address()});
  EXPECT_EQ(result.tally.ok(), 100);
  // Those due in the first half of the window; a slow machine adds to the delay.
  EXPECT_LE(result.rate * result.window_s, 51);
}

// No machine sends a million calls a second, so the last of them are late.
TEST_F(LoadRunTest, CallsThatAreSentLateAreCounted) {
  const DelayedServer server({});
  SetRate(1e6);
  step_.count = 5000;
  const StepResult result = Run({server.address()});
  ASSERT_EQ(result.tally.ok(), 5000);
  EXPECT_GT(result.sent_late, 0);
  // Late by more than 1 ms, which the histogram knows to one part in 1024.
  EXPECT_GE(result.sent_late, result.tally.send_error.CountAbove(kMs));
  EXPECT_LE(result.sent_late, result.tally.send_error.CountAbove(kMs * 99 / 100));
}

TEST_F(LoadRunTest, FailuresAreCountedByStatusAndKeptApart) {
  std::atomic<int> calls = 0;
  FakeScript script;
  script.multiply = [&](grpc::CallbackServerContext&, const v1::MultiplyRequest&,
                        v1::MultiplyResponse&) -> std::optional<grpc::Status> {
    switch (calls.fetch_add(1) % 4) {
      case 0: return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue: full");
      case 1: return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "too late");
      default: return grpc::Status::OK;
    }
  };
  const FakeServer server(script);
  SetRate(200);
  step_.count = 40;
  const StepResult result = Run({server.address()});
  EXPECT_EQ(result.tally.ok(), 20);
  EXPECT_EQ(result.tally.failed(), 20);
  EXPECT_EQ(CodesText(result.tally.calls_by_code),
            "OK 20, DEADLINE_EXCEEDED 10, RESOURCE_EXHAUSTED 10");
  EXPECT_NEAR(result.rate * result.window_s, 20, 1e-6);
  EXPECT_EQ(result.tally.latency.count(), 20);
  EXPECT_EQ(result.tally.failed_latency.count(), 20);
}

TEST_F(LoadRunTest, CallsEndAtTheirDeadline) {
  const FakeServer server(SilentScript());
  SetRate(200);
  step_.count = 10;
  step_.duration_ns = 3600'000 * kMs;
  step_.timeout = absl::Milliseconds(300);
  const StepResult result = Run({server.address()});
  EXPECT_EQ(CodesText(result.tally.calls_by_code), "DEADLINE_EXCEEDED 10");
  EXPECT_GE(result.tally.failed_latency.min_ns(), 290 * kMs);
}

TEST_F(LoadRunTest, EndpointsTakeTurns) {
  const FakeServer one(ComputingScript());
  const FakeServer two(ComputingScript());
  step_.count = 100;
  SetRate(1000);
  EXPECT_EQ(Run({one.address(), two.address()}).tally.ok(), 100);
  EXPECT_EQ(one.multiply_calls(), 50);
  EXPECT_EQ(two.multiply_calls(), 50);
}

TEST_F(LoadRunTest, OneCallInFlightGoesToEveryEndpoint) {
  const FakeServer one(ComputingScript());
  const FakeServer two(ComputingScript());
  step_.count = 100;
  EXPECT_EQ(Run({one.address(), two.address()}).tally.ok(), 100);
  EXPECT_EQ(one.multiply_calls(), 50);
  EXPECT_EQ(two.multiply_calls(), 50);
}

TEST_F(LoadRunTest, EachEndpointGetsWhatWasPlacedForIt) {
  std::atomic<int> wrong = 0;
  const auto expecting = [&wrong](const char* kernel) {
    FakeScript script = ComputingScript();
    script.multiply = [&wrong, kernel, right = script.multiply](
                          grpc::CallbackServerContext& context, const v1::MultiplyRequest& request,
                          v1::MultiplyResponse& response) {
      wrong += request.kernel() != kernel;
      return right(context, request, response);
    };
    return script;
  };
  const FakeServer one(expecting("one"));
  const FakeServer two(expecting("two"));
  for (const char* kernel : {"one", "two"}) {
    auto placed = std::make_shared<v1::MultiplyRequest>(*payloads_[0].request);
    placed->set_kernel(kernel);
    payloads_[0].placed.push_back(placed);
  }
  step_.count = 20;
  EXPECT_EQ(Run({one.address(), two.address()}, 1).tally.ok(), 20);
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(verified_.wrong, 0);
}

TEST_F(LoadRunTest, RampsFromOneRateToTheOther) {
  const DelayedServer server({});
  step_.loop = OpenLoop{.arrivals = {.rate = {.from = 100, .to = 300, .ramp_ns = 1'000'000'000}}};
  step_.duration_ns = 1000 * kMs;
  const StepResult result = Run({server.address()});
  EXPECT_EQ(result.tally.ok(), 200);
  // There are 75 in the first half.
  int64_t early = 0;
  for (const LoadInterval& interval : result.intervals) {
    if (interval.to_ns <= 500 * kMs) early += interval.ok;
  }
  EXPECT_LE(early, 75);
}

TEST_F(LoadRunTest, ReplaysGaps) {
  const DelayedServer server({});
  const std::vector<int64_t> gaps = {10 * kMs, 0, 20 * kMs};
  step_.loop = OpenLoop{.arrivals = {.replay_gaps_ns = gaps}};
  step_.duration_ns = 300 * kMs;
  // Three calls in every 30 ms; the thirtieth is due at the end.
  EXPECT_EQ(Run({server.address()}).tally.ok(), 29);
}

TEST_F(LoadRunTest, FailuresOfTheWarmUpAreLeftOut) {
  std::atomic<int> calls = 0;
  FakeScript script;
  script.multiply = [&](grpc::CallbackServerContext&, const v1::MultiplyRequest&,
                        v1::MultiplyResponse&) -> std::optional<grpc::Status> {
    if (calls.fetch_add(1) == 0) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "cold");
    return grpc::Status::OK;
  };
  const FakeServer server(script);
  SetRate(100, 1);  // The first one that is sent is the first to arrive.
  step_.warmup_ns = 200 * kMs;
  step_.duration_ns = 100 * kMs;
  const StepResult result = Run({server.address()});
  EXPECT_EQ(result.tally.failed(), 0);
  EXPECT_TRUE(result.first_messages.empty());
}

TEST_F(LoadRunTest, RightAnswersPassTheCheck) {
  const FakeServer server(ComputingScript());
  step_.count = 20;
  EXPECT_EQ(Run({server.address()}, 1).tally.ok(), 20);
  EXPECT_EQ(verified_.checked + verified_.skipped, 20);
  EXPECT_EQ(verified_.exact, verified_.checked);
  EXPECT_EQ(verified_.wrong, 0);
}

TEST_F(LoadRunTest, WrongAnswersAreFound) {
  std::atomic<int> calls = 0;
  FakeScript script = ComputingScript();
  script.multiply = [&, right = script.multiply](grpc::CallbackServerContext& context,
                                                 const v1::MultiplyRequest& request,
                                                 v1::MultiplyResponse& response) {
    auto status = right(context, request, response);
    // Changes an element by the smallest possible amount.
    if (calls.fetch_add(1) == 7) (*response.mutable_d()->mutable_data())[100] ^= 1;
    return status;
  };
  const FakeServer server(script);
  step_.count = 20;
  Run({server.address()}, 1);
  EXPECT_EQ(verified_.wrong, 1);
  EXPECT_THAT(verified_.first_error, testing::HasSubstr("fake_f32: d[0, 3, "));
}

TEST_F(LoadRunTest, CallsThatNeverGotTheirTurnAreCounted) {
  const DelayedServer server({.delay = absl::Milliseconds(100)});
  SetRate(1000, 1);
  step_.duration_ns = 500 * kMs;
  const StepResult result = Run({server.address()});
  EXPECT_LE(result.tally.ok(), 6);
  EXPECT_EQ(result.tally.ok() + result.unsent, 500);
}

class LoadStopTest : public LoadRunTest {};

TEST_F(LoadStopTest, AnInterruptedRunReportsWhatThereIs) {
  const DelayedServer server({.delay = absl::Milliseconds(50)});
  SetRate(200);
  step_.duration_ns = 3600'000 * kMs;
  int64_t answered = 0;
  progress_ = [&](const LoadInterval& interval, const IntervalTally& /*calls*/) {
    answered += interval.ok;
    if (answered >= 20) stop_ = 1;
  };
  const StepResult result = Run({server.address()});
  EXPECT_TRUE(result.was_interrupted);
  EXPECT_GE(result.window_s, 0.095 + 0.05);  // The twentieth was due at 95 ms.
  EXPECT_LT(result.window_s, 60);
  EXPECT_GE(result.tally.ok(), 20);
  EXPECT_EQ(result.tally.failed(), 0);  // The calls in progress were waited for.
}

TEST_F(LoadStopTest, AStopBehindTheLastCallIsAnInterruptionToo) {
  const DelayedServer server({});
  SetRate(0.001);  // One call, and then none before the end.
  step_.duration_ns = 3600'000 * kMs;
  progress_ = [&](const LoadInterval& interval, const IntervalTally& /*calls*/) {
    if (interval.to_ns >= 200 * kMs) stop_ = 1;
  };
  const StepResult result = Run({server.address()});
  EXPECT_TRUE(result.was_interrupted);
  EXPECT_EQ(result.tally.ok(), 1);
  EXPECT_LT(result.window_s, 60);
}

// 1000 calls a second, of which two are sent: the server never answers.
TEST_F(LoadStopTest, AStopWhileBlockedCountsWhatWasHeldBack) {
  const FakeServer server(SilentScript());
  SetRate(1000, 2);
  step_.duration_ns = 3600'000 * kMs;
  step_.timeout = absl::Hours(1);
  int64_t stopped_at_ns = 0;
  progress_ = [&](const LoadInterval& interval, const IntervalTally& /*calls*/) {
    if (stop_ == 0 && interval.to_ns >= 300 * kMs && interval.in_flight == 2) {
      stopped_at_ns = interval.to_ns;
      stop_ = 1;
    }
    if (stop_ == 1 && interval.to_ns >= stopped_at_ns + 200 * kMs) stop_ = 2;
  };
  const StepResult result = Run({server.address()});
  EXPECT_TRUE(result.was_interrupted);
  EXPECT_EQ(result.tally.failed(), 2);
  EXPECT_GE(result.unsent, 298);
  EXPECT_NEAR(result.offered, 1000, 1000 / result.window_s / 500);
}

TEST_F(LoadStopTest, WhatIsHeldBackIsNotMoreThanTheCount) {
  const FakeServer server(SilentScript());
  SetRate(1000, 2);
  step_.count = 50;
  step_.duration_ns = 3600'000 * kMs;
  step_.timeout = absl::Hours(1);
  progress_ = [&](const LoadInterval& interval, const IntervalTally& /*calls*/) {
    if (interval.to_ns >= 200 * kMs) stop_ = 2;
  };
  const StepResult result = Run({server.address()});
  EXPECT_TRUE(result.was_interrupted);
  EXPECT_EQ(result.tally.failed() + result.unsent, 50);
}

TEST_F(LoadStopTest, ASecondStopGivesUpTheCallsUnderWay) {
  const FakeServer server(SilentScript());
  const FakeServer other(SilentScript());
  step_.loop = ClosedLoop{.concurrency = 5};
  step_.duration_ns = 3600'000 * kMs;
  step_.timeout = absl::Hours(1);
  progress_ = [&](const LoadInterval& interval, const IntervalTally& /*calls*/) {
    if (interval.in_flight == 5) stop_ = 2;
  };
  const StepResult result = Run({server.address(), other.address()});
  EXPECT_TRUE(result.was_interrupted);
  EXPECT_EQ(result.tally.calls_by_code[static_cast<size_t>(absl::StatusCode::kCancelled)], 5);
}

}  // namespace
}  // namespace gemmd
