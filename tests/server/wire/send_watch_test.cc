// SPDX-License-Identifier: Apache-2.0
//
// When a call ends whose answer is not read, on the test's clock.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/wire/calls.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

class TestCall final : public SendWatch::Call {
 public:
  TestCall(SendWatch& watch, grpc::CallbackServerContext& context, std::string peer)
      : Call(watch, context), peer_(std::move(peer)) {}
  bool is_cancelled() const { return is_cancelled_; }

 private:
  std::string peer() const override { return peer_; }
  void Cancel() override { is_cancelled_ = true; }

  const std::string peer_;
  bool is_cancelled_ = false;
};

class SendWatchTest : public testing::Test {
 protected:
  // The number of calls that end as the clock advances by `duration`.
  int After(absl::Duration duration, absl::Duration timeout = absl::InfiniteDuration()) {
    clock_.Advance(absl::ToInt64Nanoseconds(duration));
    return watch_.EndSilent(timeout);
  }

  FakeClock clock_;
  int64_t taken_bytes_ = 0;  // Of the peer "told".
  SendWatch watch_{{.timeout = absl::Seconds(10), .min_bytes_per_second = 8 * kMebi},
                   clock_,
                   [this](const std::string& peer) {
                     return peer == "told" ? std::optional(taken_bytes_) : std::nullopt;
                   }};
  grpc::CallbackServerContext context_;
  TestCall call_{watch_, context_, ""};
  TestCall told_{watch_, context_, "told"};
};

TEST_F(SendWatchTest, WhereNothingIsToldBytesHaveTheirTime) {
  call_.Begin(64 * kMebi);
  EXPECT_EQ(After(absl::Seconds(17.9)), 0);
  EXPECT_FALSE(call_.is_cancelled());
  EXPECT_EQ(After(absl::Seconds(0.1)), 1);
  EXPECT_TRUE(call_.is_cancelled());
  EXPECT_EQ(After(absl::Hours(1)), 0) << "once for each";
}

TEST_F(SendWatchTest, WhereMemoryIsShortBytesHaveNoTime) {
  call_.Begin(512 * kMebi);
  EXPECT_EQ(After(absl::Seconds(0.9), absl::Seconds(1)), 0);
  EXPECT_EQ(After(absl::Seconds(0.1), absl::Seconds(1)), 1);
}

TEST_F(SendWatchTest, WhoTakesNothingLosesTheCallWhateverItsLength) {
  told_.Begin(512 * kMebi);
  EXPECT_EQ(After(absl::Seconds(0.2)), 0);
  taken_bytes_ += SendWatch::kMinProgressBytes - 1;  // Acknowledged by answers to pings.
  EXPECT_EQ(After(absl::Seconds(9.7)), 0);
  EXPECT_EQ(After(absl::Seconds(0.1)), 1);
  EXPECT_TRUE(told_.is_cancelled());
}

TEST_F(SendWatchTest, WhoTakesSomethingHasTheTimeOfTheBytes) {
  told_.Begin(512 * kMebi);  // May take 64 s for its bytes and 10 s more.
  EXPECT_EQ(After(absl::Milliseconds(1)), 0);
  for (int i = 0; i < 8; ++i) {
    taken_bytes_ += SendWatch::kMinProgressBytes;
    EXPECT_EQ(After(absl::Seconds(9)), 0) << i;
  }
  taken_bytes_ += SendWatch::kMinProgressBytes;
  EXPECT_EQ(After(absl::Seconds(2)), 1) << "slower than the least rate";
}

TEST_F(SendWatchTest, WhereMemoryIsShortWhoTakesSomethingIsLeft) {
  told_.Begin(512 * kMebi);
  EXPECT_EQ(After(absl::Milliseconds(1)), 0);
  for (int i = 0; i < 10; ++i) {
    taken_bytes_ += SendWatch::kMinProgressBytes;
    EXPECT_EQ(After(absl::Seconds(0.9), absl::Seconds(1)), 0) << i;
  }
  EXPECT_EQ(After(absl::Seconds(1), absl::Seconds(1)), 1);
}

TEST_F(SendWatchTest, ProgressBeforeTheAnswerDoesNotCount) {
  taken_bytes_ = kMebi;
  told_.Begin(kMebi);
  EXPECT_EQ(After(absl::Seconds(9)), 0);
  EXPECT_EQ(After(absl::Seconds(1)), 1);
}

TEST_F(SendWatchTest, WhatHasLeftIsWatchedNoLonger) {
  call_.Begin(1);
  told_.Begin(1);
  call_.End();
  told_.End();
  EXPECT_EQ(After(absl::Hours(1)), 0);
  told_.Begin(1);  // Its next answer.
  EXPECT_EQ(After(absl::Seconds(9)), 0);
  EXPECT_EQ(After(absl::Seconds(1)), 1);
}

// A device's thread may be the last to free a call, after the server is gone: AddressSanitizer
// would detect an access.
TEST_F(SendWatchTest, ACallThatHasEndedMayOutliveTheWatch) {
  auto watch = std::make_unique<SendWatch>(SendWatch::Limits(), clock_);
  TestCall call(*watch, context_, "");
  call.Begin(1);
  call.End();
  const TestCall idle(*watch, context_, "");
  watch.reset();
}

}  // namespace
}  // namespace gemmd
