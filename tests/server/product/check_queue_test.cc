// SPDX-License-Identifier: Apache-2.0
#include "server/product/check_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kLong = 2 * CheckQueue::kShortNs;
constexpr int64_t kShort = kMs;

class CheckQueueTest : public ::testing::Test {
 protected:
  // A check that records its name when it begins, or the reason why it never does.
  std::unique_ptr<CheckQueue::Check> Named(std::string name, std::string caller,
                                           int64_t predicted_ns,
                                           Priority priority = Priority::kNormal) {
    auto check = std::make_unique<CheckQueue::Check>();
    check->id = ++last_id_;
    check->predicted_ns = predicted_ns;
    check->priority = priority;
    check->caller = std::move(caller);
    check->work = [this, name = std::move(name)](const absl::Status& status, AbortFlag) {
      absl::MutexLock lock(&mutex_);
      seen_.push_back(
          status.ok() ? name : name + " " + std::string(absl::StatusCodeToString(status.code())));
    };
    return check;
  }

  // A check that occupies a thread until `end_`.
  std::unique_ptr<CheckQueue::Check> Holding(int64_t predicted_ns) {
    std::unique_ptr<CheckQueue::Check> check = Named("", "holder", predicted_ns);
    check->work = [this](const absl::Status&, AbortFlag) {
      begun_.Notify();
      end_.WaitForNotification();
    };
    return check;
  }

  std::vector<std::string> WaitForSeen(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto are_there = [&] { return seen_.size() >= count; };
    mutex_.Await(absl::Condition(&are_there));
    return seen_;
  }

  FakeClock clock_;
  absl::Mutex mutex_;
  std::vector<std::string> seen_;
  JobId last_id_ = 0;
  absl::Notification begun_;
  absl::Notification end_;
  absl::Notification aborted_;
  CheckQueue queue_{1, clock_};
};

TEST_F(CheckQueueTest, ShortChecksDoNotWaitForALongOne) {
  queue_.Add(Holding(kLong));
  begun_.WaitForNotification();
  queue_.Add(Named("long", "a", kLong));
  queue_.Add(Named("short", "b", kShort));
  queue_.Add(Named("shorter", "b", kShort / 2));
  EXPECT_THAT(WaitForSeen(2), ElementsAre("short", "shorter"));
  end_.Notify();
  EXPECT_THAT(WaitForSeen(3), ElementsAre("short", "shorter", "long"));
}

TEST_F(CheckQueueTest, CallersTakeTurnsAndLowPriorityComesLast) {
  queue_.Add(Holding(kLong));
  begun_.WaitForNotification();
  queue_.Add(Named("low", "patient", kLong, Priority::kLow));
  for (int i = 0; i < 3; ++i) queue_.Add(Named("heavy", "heavy", kLong));
  queue_.Add(Named("light", "light", kLong));
  end_.Notify();
  EXPECT_THAT(WaitForSeen(5), ElementsAre("heavy", "light", "heavy", "heavy", "low"));
}

TEST_F(CheckQueueTest, WhatWaitsIsCancelledAtOnceAndWhatRunsIsAborted) {
  std::unique_ptr<CheckQueue::Check> running = Named("", "a", kShort);
  running->work = [this](const absl::Status&, AbortFlag abort) {
    begun_.Notify();
    while (!IsSet(abort)) absl::SleepFor(absl::Milliseconds(1));
    aborted_.Notify();
  };
  const JobId running_id = running->id;
  queue_.Add(std::move(running));
  begun_.WaitForNotification();
  std::unique_ptr<CheckQueue::Check> waiting = Named("waiting", "a", kShort);
  const JobId waiting_id = waiting->id;
  queue_.Add(std::move(waiting));
  queue_.Add(Named("next", "a", kShort));
  queue_.Cancel({waiting_id});
  EXPECT_THAT(WaitForSeen(1), ElementsAre("waiting CANCELLED"));
  EXPECT_FALSE(aborted_.HasBeenNotified());
  queue_.Cancel({running_id});
  aborted_.WaitForNotification();
  EXPECT_THAT(WaitForSeen(2), ElementsAre("waiting CANCELLED", "next"));
}

TEST_F(CheckQueueTest, WhatCannotBeInTimeNeverBegins) {
  std::unique_ptr<CheckQueue::Check> late = Named("late", "a", kLong);
  late->deadline_ns = clock_.NowNs() + kLong - 1;
  queue_.Add(std::move(late));
  EXPECT_THAT(WaitForSeen(1), ElementsAre("late DEADLINE_EXCEEDED"));
}

TEST_F(CheckQueueTest, StopEndsAllAndWhatComesLater) {
  queue_.Add(Holding(kLong));
  begun_.WaitForNotification();
  queue_.Add(Named("first", "a", kLong));
  queue_.Stop();
  queue_.Add(Named("second", "a", kShort));
  EXPECT_THAT(WaitForSeen(2), ElementsAre("first CANCELLED", "second CANCELLED"));
  end_.Notify();
}

TEST_F(CheckQueueTest, TheWaitIsThatOfFairTurns) {
  const FlowId heavy = {.caller = "heavy", .connection = 1};
  const FlowId light = {.caller = "light", .connection = 2};
  const auto wait_of = [&](const FlowId& flow, int64_t ns, Priority priority = Priority::kNormal) {
    int64_t wait_ns = -1;
    CheckQueue::Claim claim = queue_.Enter(flow, priority, ns, wait_ns);
    claim.Release();
    return wait_ns;
  };
  EXPECT_EQ(wait_of(heavy, kLong), 0);
  std::vector<CheckQueue::Claim> claims;
  int64_t wait_ns = 0;
  for (int i = 0; i < 10; ++i) {
    claims.push_back(queue_.Enter(heavy, Priority::kNormal, kLong, wait_ns));
    EXPECT_EQ(wait_ns, i * kLong);
  }
  // Checks of another length, of another caller, of another connection, and of low priority.
  EXPECT_EQ(wait_of(heavy, kShort), 0);
  EXPECT_EQ(wait_of(light, kLong), kLong);
  EXPECT_EQ(wait_of({.caller = "heavy", .connection = 3}, kLong), kLong);
  EXPECT_EQ(wait_of(light, kLong, Priority::kLow), 10 * kLong);
  // However many connections a caller has, it gets one turn before that of another caller.
  claims.push_back(
      queue_.Enter({.caller = "heavy", .connection = 4}, Priority::kNormal, kLong, wait_ns));
  EXPECT_EQ(wait_of(light, kLong), kLong);
  EXPECT_EQ(wait_of({.caller = "heavy", .connection = 3}, kLong), 2 * kLong);
  claims.pop_back();
  claims.erase(claims.begin(), claims.begin() + 9);
  EXPECT_EQ(wait_of(heavy, kLong), kLong);
  claims.clear();
  EXPECT_EQ(wait_of(heavy, kLong), 0);
}

}  // namespace
}  // namespace gemmd
