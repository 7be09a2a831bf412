// SPDX-License-Identifier: Apache-2.0
//
// Loads that the user ends before their time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/load/delayed_server.h"
#include "tests/client/load/load_run_fixture.h"

namespace gemmd {
namespace {

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
  EXPECT_EQ(result.tally.failed(), 0);  // Those under way were waited for.
}

TEST_F(LoadStopTest, AStopBehindTheLastCallIsAnInterruptionToo) {
  const DelayedServer server({});
  SetRate(0.001);  // One call, and then nothing before the end.
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
