// SPDX-License-Identifier: Apache-2.0
#include "server/product/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/device/shared_host.h"
#include "tests/server/product/scheduler_fixture.h"
#include "tests/testing/test_kernel.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using ::testing::ElementsAre;

TEST_F(SchedulerTest, GivesEachDeviceOneJobAtATimeInOrder) {
  Submit("a", first_);
  Submit("b", first_);
  Submit("c", second_);
  Submit("d", first_);
  EXPECT_EQ(first_.held(), 1);
  EXPECT_EQ(second_.held(), 1);
  first_.CompleteNext();
  EXPECT_EQ(first_.held(), 1);
  first_.CompleteNext();
  second_.CompleteNext();
  first_.CompleteNext();
  EXPECT_THAT(ended_, ElementsAre("a OK", "b OK", "c OK", "d OK"));
  EXPECT_EQ(first_.held(), 0);
}

TEST_F(SchedulerTest, LaunchesTheNextJobBeforeTheLastOneIsAnswered) {
  int held_when_answered = -1;
  auto owned = std::make_unique<Submission>();
  Submission& submission = *owned;
  submission.device = &first_;
  submission.job = TestJob(&outputs_.emplace_back());
  submission.done = [&](std::unique_ptr<Submission>) { held_when_answered = first_.held(); };
  scheduler_.Submit(std::move(owned));
  Submit("next", first_);
  first_.CompleteNext();
  EXPECT_EQ(held_when_answered, 1);
  first_.CompleteNext();
}

TEST_F(SchedulerTest, PassesOnTheDevicesStatus) {
  Submit("a", first_);
  first_.CompleteNext(absl::InternalError("broken"));
  EXPECT_THAT(ended_, ElementsAre("a INTERNAL"));
  EXPECT_EQ(last_->outcome.status.message(), "broken");
}

TEST_F(SchedulerTest, MeasuresTheTimeInTheQueue) {
  Submit("a", first_);
  clock_.Advance(5);
  Submit("b", first_);
  clock_.Advance(70);
  first_.CompleteNext();
  EXPECT_EQ(last_->queue_ns, 0);
  clock_.Advance(1000);
  first_.CompleteNext();
  EXPECT_EQ(last_->queue_ns, 70);
}

TEST_F(SchedulerTest, NeverLaunchesAJobThatCannotBeInTime) {
  Submit("a", first_);
  Submit("late", first_, clock_.NowNs() + 59, 10);
  Submit("in time", first_, clock_.NowNs() + 60 * kMs, 10);
  clock_.Advance(50);
  first_.CompleteNext();
  EXPECT_EQ(first_.submitted(), 2);
  first_.CompleteNext();
  EXPECT_THAT(ended_, ElementsAre("late DEADLINE_EXCEEDED", "a OK", "in time OK"));
}

TEST_F(SchedulerTest, ABusyDeviceCountsTheTimeUpToNow) {
  EXPECT_EQ(scheduler_.load(first_).busy_ns, 0);
  const JobId id = Submit("a", first_);
  clock_.Advance(300);
  EXPECT_EQ(scheduler_.load(first_).busy_ns, 300);
  scheduler_.Cancel(id);
  clock_.Advance(1000);
  EXPECT_EQ(scheduler_.load(first_).busy_ns, 300);
  Submit("b", first_);
  clock_.Advance(50);
  first_.CompleteNext();
  EXPECT_EQ(scheduler_.load(first_).busy_ns, 350);
}

TEST_F(SchedulerTest, TheBacklogLessensWhileAJobRunsAndGrowsWhereItIsLate) {
  Submit("a", first_, kNoDeadlineNs, 100);
  Submit("b", first_, kNoDeadlineNs, 1000);
  clock_.Advance(40);
  EXPECT_EQ(scheduler_.load(first_).backlog_ns, 1060);
  clock_.Advance(60);
  EXPECT_EQ(scheduler_.load(first_).backlog_ns, 1000);
  clock_.Advance(500);
  EXPECT_EQ(scheduler_.load(first_).backlog_ns, 1500);
  first_.CompleteNext();
  first_.CompleteNext();
}

TEST_F(SchedulerTest, AfterAStopNothingIsLaunched) {
  Submit("a", first_);
  scheduler_.Stop(absl::UnavailableError("the server stopped"));
  EXPECT_THAT(ended_, ElementsAre("a UNAVAILABLE"));
  EXPECT_EQ(last_->outcome.status.message(), "the server stopped while it ran");
  Submit("b", first_);
  EXPECT_THAT(ended_, ElementsAre("a UNAVAILABLE", "b UNAVAILABLE"));
  EXPECT_EQ(first_.submitted(), 1);
}

TEST_F(SchedulerTest, TellsOfEarlierDeadlinesOnly) {
  int told = 0;
  scheduler_.WatchDeadlines([&] { ++told; });
  const int64_t now_ns = clock_.NowNs();
  Submit("a", first_, now_ns + 50 * kMs);
  EXPECT_EQ(told, 1);
  Submit("b", first_, now_ns + 60 * kMs);
  EXPECT_EQ(told, 1);
  Submit("c", first_, now_ns + 40 * kMs);
  EXPECT_EQ(told, 2);
  EXPECT_EQ(scheduler_.EndExpired(), now_ns + 40 * kMs);
  scheduler_.Stop(absl::UnavailableError("over"));
}

// The listener is called after the scheduler's lock was released, and before the device is given
// the job.
TEST_F(SchedulerTest, TakesAJobForItsIdleDeviceAsItQueuesIt) {
  std::vector<int64_t> waiting;
  scheduler_.WatchDeadlines([&] { waiting.push_back(scheduler_.load(first_).queued_requests); });
  Submit("a", first_, clock_.NowNs() + 50 * kMs);
  Submit("b", first_, clock_.NowNs() + 40 * kMs);
  EXPECT_THAT(waiting, ElementsAre(0, 1));
  EXPECT_EQ(first_.submitted(), 1);
  scheduler_.WatchDeadlines(nullptr);
}

TEST_F(SchedulerTest, NeverLaunchesAJobThatCameTooLate) {
  Submit("late", first_, clock_.NowNs() - 1);
  EXPECT_EQ(first_.submitted(), 0);
  EXPECT_THAT(ended_, ElementsAre("late DEADLINE_EXCEEDED"));
}

TEST_F(SchedulerTest, StopAnswersAllThatWait) {
  first_.IgnoreAborts();
  Submit("a", first_);
  Submit("b", first_);
  Submit("c", first_);
  scheduler_.Stop(absl::UnavailableError("stopping"));
  EXPECT_THAT(ended_, ElementsAre("b UNAVAILABLE", "c UNAVAILABLE"));
  EXPECT_EQ(scheduler_.load(first_).queued_requests, 0);
  EXPECT_EQ(scheduler_.load(first_).queued_bytes, 0);
  EXPECT_EQ(scheduler_.load(first_).backlog_ns, 0);  // Jobs being aborted have no time left.
  EXPECT_EQ(first_.aborts(), 1);
  first_.CompleteNext();
  EXPECT_EQ(first_.submitted(), 1);
  EXPECT_EQ(scheduler_.load(first_).backlog_ns, 0);
}

TEST_F(SchedulerTest, LoadReturnsToZeroHoweverJobsEnd) {
  Submit("a", first_, kNoDeadlineNs, 7);
  const JobId cancelled = Submit("b", first_, kNoDeadlineNs, 11);
  Submit("c", first_, clock_.NowNs() + 14, 13);
  Submit("d", first_, kNoDeadlineNs, 17);
  EXPECT_EQ(scheduler_.load(first_).queued_requests, 3);
  EXPECT_EQ(scheduler_.load(first_).queued_bytes, 300);
  EXPECT_EQ(scheduler_.load(first_).backlog_ns, 7 + 11 + 13 + 17);
  scheduler_.Cancel(cancelled);
  EXPECT_EQ(scheduler_.load(first_).backlog_ns, 7 + 13 + 17);
  clock_.Advance(2);
  first_.CompleteNext();
  EXPECT_EQ(scheduler_.load(first_).backlog_ns, 17);
  first_.CompleteNext(absl::InternalError("broken"));
  const DeviceLoad load = scheduler_.load(first_);
  EXPECT_EQ(load.queued_requests, 0);
  EXPECT_EQ(load.queued_bytes, 0);
  EXPECT_EQ(load.backlog_ns, 0);
  EXPECT_EQ(load.completed_requests, 2);
}

// Many threads submit, cancel and let jobs expire, while another ends expired ones; every job ends
// exactly once.
TEST(SchedulerStressTest, EveryJobEndsOnce) {
  constexpr int kThreads = 4;
  constexpr int kJobs = 500;
  const SteadyClock clock;
  struct Record {
    std::atomic<int> ends{0};
    std::atomic<int> code{-1};
    std::string d;
  };
  std::vector<Record> records(kThreads * kJobs);
  std::unique_ptr<Scheduler> scheduler;
  {
    ScriptedDevice device(SharedHost());
    std::vector<Device*> devices = {&device};
    scheduler = std::make_unique<Scheduler>(devices, clock);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::minstd_rand random(static_cast<unsigned>(t) + 1);
        for (int i = 0; i < kJobs; ++i) {
          Record& record = records[static_cast<size_t>(t * kJobs + i)];
          auto owned = std::make_unique<Submission>();
          Submission& submission = *owned;
          submission.device = &device;
          submission.job = TestJob(&record.d);
          submission.predicted_ns = 1;  // So that the running job counts in the backlog, too.
          if (random() % 4 == 0) submission.deadline_ns = clock.NowNs() + random() % 100'000;
          submission.done = [&record](std::unique_ptr<Submission> result) {
            record.code = result->outcome.status.raw_code();
            record.ends.fetch_add(1);
          };
          const JobId id = scheduler->Submit(std::move(owned));
          if (random() % 3 == 0) scheduler->Cancel(id);
        }
      });
    }
    std::atomic<bool> is_over = false;
    std::thread ender([&] {
      while (!is_over) scheduler->EndExpired();
    });
    for (std::thread& thread : threads) thread.join();
    while (scheduler->load(device).backlog_ns > 0 || scheduler->load(device).queued_requests > 0) {
      std::this_thread::yield();
    }
    is_over = true;
    ender.join();
  }  // The device's thread has ended: every callback has been called.
  int launched = 0;
  for (const Record& record : records) {
    ASSERT_EQ(record.ends.load(), 1);
    if (record.code == 0) {
      ++launched;
      ASSERT_EQ(record.d, "\xff\xff\xff\xff");
    }
  }
  EXPECT_GT(launched, 0);
}

}  // namespace
}  // namespace gemmd
