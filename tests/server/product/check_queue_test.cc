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
      return true;
    };
    return check;
  }

  // A check that occupies a thread until `end_`.
  std::unique_ptr<CheckQueue::Check> Holding(int64_t predicted_ns) {
    std::unique_ptr<CheckQueue::Check> check = Named("", "holder", predicted_ns);
    check->work = [this](const absl::Status&, AbortFlag) {
      begun_.Notify();
      end_.WaitForNotification();
      return true;
    };
    return check;
  }

  // A check of some slices of kShortNs, which records its name for each of them. The first one
  // waits for `go`, if there is one.
  std::unique_ptr<CheckQueue::Check> Sliced(std::string name, std::string caller, int slices,
                                            Priority priority = Priority::kNormal,
                                            absl::Notification* go = nullptr) {
    std::unique_ptr<CheckQueue::Check> check =
        Named("", std::move(caller), slices * CheckQueue::kShortNs + 1, priority);
    check->work = [this, name = std::move(name), left = slices, go](const absl::Status& status,
                                                                    AbortFlag abort) mutable {
      if (go != nullptr) {
        begun_.Notify();
        std::exchange(go, nullptr)->WaitForNotification();
      }
      clock_.Advance(CheckQueue::kShortNs);
      const bool is_aborted = !status.ok() || IsSet(abort);
      absl::MutexLock lock(&mutex_);
      seen_.push_back(is_aborted ? name + " aborted" : name);
      return --left == 0 || is_aborted;
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

TEST_F(CheckQueueTest, ALongCheckGivesWayAfterASlice) {
  queue_.Add(Sliced("low", "patient", 5, Priority::kLow, &end_));
  begun_.WaitForNotification();
  queue_.Add(Sliced("normal", "hasty", 3));
  end_.Notify();
  EXPECT_THAT(WaitForSeen(8),
              ElementsAre("low", "normal", "normal", "normal", "low", "low", "low", "low"));
}

TEST_F(CheckQueueTest, LongChecksOfCallersTakeTurnsSliceBySlice) {
  queue_.Add(Sliced("first", "first", 4, Priority::kNormal, &end_));
  begun_.WaitForNotification();
  std::unique_ptr<CheckQueue::Check> twice = Sliced("twice", "twice", 4);
  twice->share = 2;
  queue_.Add(std::move(twice));
  end_.Notify();
  EXPECT_THAT(WaitForSeen(8),
              ElementsAre("first", "twice", "twice", "first", "twice", "twice", "first", "first"));
}

TEST_F(CheckQueueTest, ACheckThatGaveWayIsCancelledAtOnce) {
  std::unique_ptr<CheckQueue::Check> low = Sliced("low", "patient", 100, Priority::kLow, &end_);
  const JobId low_id = low->id;
  queue_.Add(std::move(low));
  begun_.WaitForNotification();
  absl::Notification is_cancelled;
  std::unique_ptr<CheckQueue::Check> normal = Named("", "hasty", kLong);
  normal->work = [&](const absl::Status&, AbortFlag) {
    queue_.Cancel({low_id});
    is_cancelled.Notify();
    return true;
  };
  queue_.Add(std::move(normal));
  end_.Notify();
  is_cancelled.WaitForNotification();
  EXPECT_THAT(WaitForSeen(2), ElementsAre("low", "low aborted"));
}

TEST_F(CheckQueueTest, AnAbortedCheckEndsBeforeAnotherBegins) {
  std::unique_ptr<CheckQueue::Check> running = Named("", "a", kLong, Priority::kLow);
  running->work = [this](const absl::Status&, AbortFlag abort) {
    if (!begun_.HasBeenNotified()) {
      begun_.Notify();
      end_.WaitForNotification();
      return false;  // It does not look at its flag before the end of the slice.
    }
    absl::MutexLock lock(&mutex_);
    seen_.push_back(IsSet(abort) ? "running aborted" : "running");
    return true;
  };
  const JobId running_id = running->id;
  queue_.Add(std::move(running));
  begun_.WaitForNotification();
  queue_.Add(Named("next", "b", kLong));
  queue_.Cancel({running_id});
  end_.Notify();
  EXPECT_THAT(WaitForSeen(2), ElementsAre("running aborted", "next"));
}

// What a check has begun counts as done: its deadline was promised when it was admitted.
TEST_F(CheckQueueTest, ACheckThatGaveWayIsNotTooLateForItsRest) {
  std::unique_ptr<CheckQueue::Check> tight = Sliced("tight", "a", 3, Priority::kNormal, &end_);
  tight->deadline_ns = clock_.NowNs() + 4 * CheckQueue::kShortNs;
  queue_.Add(std::move(tight));
  begun_.WaitForNotification();
  queue_.Add(Sliced("other", "b", 3));
  end_.Notify();
  EXPECT_THAT(WaitForSeen(6), ElementsAre("tight", "other", "tight", "other", "tight", "other"));
}

TEST_F(CheckQueueTest, WhatWaitsIsCancelledAtOnceAndWhatRunsIsAborted) {
  std::unique_ptr<CheckQueue::Check> running = Named("", "a", kShort);
  running->work = [this](const absl::Status&, AbortFlag abort) {
    begun_.Notify();
    while (!IsSet(abort)) absl::SleepFor(absl::Milliseconds(1));
    aborted_.Notify();
    return true;
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
