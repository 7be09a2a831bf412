// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <vector>

#include "server/product/queue.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kPlenty = int64_t{1} << 60;

class DeviceQueueTest : public ::testing::Test {
 protected:
  JobId Add(int64_t predicted_ns, int64_t deadline_ns = kNoDeadlineNs,
            Priority priority = Priority::kNormal, bool is_promised = false) {
    DeviceQueue::Job& job = jobs_.emplace_back();
    job.id = jobs_.size();
    job.predicted_ns = predicted_ns;
    job.deadline_ns = deadline_ns;
    job.priority = priority;
    job.is_promised = is_promised;
    job.correction = &correction_;
    queue_.Add({"flow"}, job);
    return job.id;
  }

  // The ids of all jobs launched from `now_ns` on, each running to its end before the next.
  std::vector<JobId> RunAll(int64_t now_ns = 0) {
    std::vector<JobId> ran;
    while (true) {
      const DeviceQueue::Choice choice = queue_.TakeNext(now_ns);
      for (const DeviceQueue::Job* late : choice.too_late) too_late_.push_back(late->id);
      if (choice.next == nullptr) return ran;
      ran.push_back(choice.next->id);
      now_ns += choice.next->predicted_ns;
      queue_.End(*choice.next, choice.next->predicted_ns);
    }
  }

  Correction correction_;
  DeviceQueue queue_;
  std::deque<DeviceQueue::Job> jobs_;
  std::vector<JobId> too_late_;
};

TEST_F(DeviceQueueTest, WhatCannotBeInTimeIsNotLaunched) {
  Add(10 * kMs, 10 * kMs - 1);
  Add(10 * kMs, 0);
  Add(10 * kMs, 100 * kMs);
  EXPECT_THAT(RunAll(), ElementsAre(3));
  EXPECT_THAT(too_late_, ElementsAre(1, 2));
  EXPECT_EQ(queue_.waiting_ns(), 0);
}

TEST_F(DeviceQueueTest, ADoubtfulJobWaitsForTheSafeOnes) {
  Add(10 * kMs, 20 * kMs);  // Twice its time, but no time for the answer.
  Add(10 * kMs, 15 * kMs);
  Add(1 * kMs);
  Add(1 * kMs);
  EXPECT_THAT(RunAll(), ElementsAre(3, 4, 1));
  EXPECT_THAT(too_late_, ElementsAre(2));
}

TEST_F(DeviceQueueTest, AloneADoubtfulJobIsLaunched) {
  Add(10 * kMs, 10 * kMs);
  EXPECT_EQ(queue_.AheadOf({"flow"}, Priority::kNormal, kPlenty).waiting_ns, 10 * kMs);
  EXPECT_THAT(RunAll(), ElementsAre(1));
  EXPECT_THAT(too_late_, IsEmpty());
  EXPECT_EQ(queue_.InsideOf({"flow"}).of_caller, 0);
}

TEST_F(DeviceQueueTest, APromiseIsKept) {
  Add(60 * kMs, 100 * kMs, Priority::kNormal, true);
  Add(1 * kMs);
  EXPECT_THAT(RunAll(), ElementsAre(1, 2));
}

TEST_F(DeviceQueueTest, ADoubtfulJobCanBeRemoved) {
  Add(10 * kMs, 15 * kMs);
  Add(10 * kMs);
  DeviceQueue::Choice choice = queue_.TakeNext(0);
  EXPECT_EQ(choice.next->id, 2U);
  EXPECT_EQ(queue_.waiting_ns(), 10 * kMs);
  queue_.Remove(jobs_[0]);
  EXPECT_EQ(queue_.waiting_ns(), 0);
  queue_.End(*choice.next, 1);
  EXPECT_THAT(RunAll(), IsEmpty());
  EXPECT_EQ(queue_.InsideOf({"flow"}).of_caller, 0);
}

TEST_F(DeviceQueueTest, LowPriorityWaitsForNormal) {
  Add(10, kNoDeadlineNs, Priority::kLow);
  Add(10);
  Add(10);
  EXPECT_EQ(queue_.AheadOf({"other"}, Priority::kLow, kPlenty).waiting_ns, 30);
  EXPECT_EQ(queue_.AheadOf({"flow"}, Priority::kNormal, kPlenty).waiting_ns, 20);
  EXPECT_THAT(RunAll(), ElementsAre(2, 3, 1));
}

TEST_F(DeviceQueueTest, LowPriorityHasATwentiethOfABusyDevice) {
  for (int i = 0; i < 4; ++i) Add(19, kNoDeadlineNs, Priority::kLow);
  for (int i = 0; i < 400; ++i) Add(19);
  std::vector<JobId> ran = RunAll();
  ran.resize(60);
  std::vector<size_t> turns;
  for (size_t i = 0; i < ran.size(); ++i) {
    if (ran[i] <= 4) turns.push_back(i);
  }
  EXPECT_THAT(turns, ElementsAre(19, 39, 59));
}

// Measured by the time that products took, and not by what was expected of them: here a third to
// three times as much.
TEST_F(DeviceQueueTest, LowPriorityHasATwentiethOfWhatProductsTook) {
  for (const auto& [low_ns, normal_ns] : {std::pair(57, 19), std::pair(19, 57), std::pair(6, 40)}) {
    for (int i = 0; i < 400; ++i) {
      Add(19, kNoDeadlineNs, Priority::kLow);
      Add(19);
    }
    double had_ns = 0;
    double had_by_low_ns = 0;
    for (int i = 0; i < 400; ++i) {
      DeviceQueue::Job& job = *queue_.TakeNext(0).next;
      const bool is_low = job.priority == Priority::kLow;
      const int64_t ran_ns = is_low ? low_ns : normal_ns;
      queue_.End(job, ran_ns);
      had_ns += static_cast<double>(ran_ns);
      if (is_low) had_by_low_ns += static_cast<double>(ran_ns);
    }
    EXPECT_NEAR(had_by_low_ns / had_ns, 0.05, 0.005) << low_ns << " beside " << normal_ns;
    while (!queue_.empty()) queue_.End(*queue_.TakeNext(0).next, 19);
  }
}

// The time that low priority was owed while it waited is not saved for later.
TEST_F(DeviceQueueTest, WhatIsOwedIsForgottenWhereNobodyWantsIt) {
  Add(1900, kNoDeadlineNs, Priority::kLow);
  for (int i = 0; i < 18; ++i) Add(1900);
  RunAll();
  Add(1900);
  RunAll();
  Add(1900, kNoDeadlineNs, Priority::kLow);
  for (int i = 0; i < 3; ++i) Add(1900);
  EXPECT_EQ(RunAll().back(), 21U);
}

// Corrections learned while a job waits apply to it, whether it is safe or doubtful.
TEST_F(DeviceQueueTest, ExpectsAnewAtTheLaunch) {
  Add(10 * kMs);
  Add(10 * kMs, 90 * kMs);
  for (int i = 0; i < 40; ++i) correction_.Observe(10 * kMs, 40 * kMs, true);
  DeviceQueue::Job& first = *queue_.TakeNext(0).next;
  EXPECT_NEAR(static_cast<double>(first.cost_ns), 40 * kMs, kMs);
  DeviceQueue::Job& doubtful = *queue_.TakeNext(80 * kMs).next;
  EXPECT_TRUE(doubtful.is_doubtful);
  EXPECT_EQ(doubtful.cost_ns, first.cost_ns);
  EXPECT_EQ(queue_.waiting_ns(), 0);
  queue_.End(first, 40 * kMs);
  queue_.End(doubtful, 40 * kMs);
  EXPECT_EQ(queue_.InsideOf({"flow"}).of_caller, 0);
}

// A job that is expected to be late is doubtful, but only the uncorrected prediction drops it:
// otherwise the queue would never learn that the machine is fast again.
TEST_F(DeviceQueueTest, ASlowMachineIsTriedAgain) {
  for (int i = 0; i < 40; ++i) correction_.Observe(10 * kMs, 60 * kMs, true);
  Add(10 * kMs, 50 * kMs);
  Add(10 * kMs);
  EXPECT_THAT(RunAll(), ElementsAre(2, 1));
}

}  // namespace
}  // namespace gemmd
