// SPDX-License-Identifier: Apache-2.0
//
// Jobs that end before they are done: cancelled or expired.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/product/scheduler.h"
#include "tests/server/product/scheduler_fixture.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(SchedulerTest, CancelDropsAWaitingJobAtOnce) {
  Submit("a", first_);
  const JobId waiting = Submit("b", first_);
  clock_.Advance(33);
  scheduler_.Cancel(waiting);
  EXPECT_THAT(ended_, ElementsAre("b CANCELLED"));
  EXPECT_EQ(last_->queue_ns, 33);
  first_.CompleteNext();
  EXPECT_EQ(first_.submitted(), 1);
  EXPECT_THAT(ended_, ElementsAre("b CANCELLED", "a OK"));
}

TEST_F(SchedulerTest, CancelLeavesUnknownJobsAlone) {
  const JobId running = Submit("a", first_);
  scheduler_.Cancel(running + 1000);
  scheduler_.Cancel(0);
  EXPECT_THAT(ended_, IsEmpty());
  first_.CompleteNext();
  scheduler_.Cancel(running);
  EXPECT_THAT(ended_, ElementsAre("a OK"));
  EXPECT_EQ(first_.aborts(), 0);
}

TEST_F(SchedulerTest, CancelAbortsARunningJobAndFreesTheDevice) {
  const JobId running = Submit("a", first_);
  Submit("b", first_);
  scheduler_.Cancel(running);
  EXPECT_THAT(ended_, ElementsAre("a CANCELLED"));
  EXPECT_EQ(last_->outcome.status.message(), "cancelled while it ran");
  EXPECT_EQ(first_.submitted(), 2);  // The next job has the device.
  scheduler_.Cancel(running);
  EXPECT_EQ(first_.aborts(), 1);
  first_.CompleteNext();
  EXPECT_THAT(ended_, ElementsAre("a CANCELLED", "b OK"));
}

TEST_F(SchedulerTest, TheDeadlineAbortsARunningJob) {
  Submit("a", first_, clock_.NowNs() + 1000);
  EXPECT_EQ(scheduler_.EndExpired(), clock_.NowNs() + 1000);
  clock_.Advance(999);
  scheduler_.EndExpired();
  EXPECT_THAT(ended_, IsEmpty());
  clock_.Advance(1);
  EXPECT_EQ(scheduler_.EndExpired(), kNoDeadlineNs);
  EXPECT_THAT(ended_, ElementsAre("a DEADLINE_EXCEEDED"));
  EXPECT_EQ(last_->outcome.status.message(), "the deadline passed while it ran");
}

TEST_F(SchedulerTest, CountsTheTimeUntilADeviceIsDoneWithWhatNobodyWants) {
  const auto aborts = [&] { return scheduler_.load(first_).aborts; };
  first_.IgnoreAborts();
  const JobId cancelled = Submit("a", first_);
  Submit("b", first_, clock_.NowNs() + 100 * kMs);
  Submit("c", first_);
  clock_.Advance(kMs);
  scheduler_.Cancel(cancelled);
  clock_.Advance(30 * kMs);
  scheduler_.Cancel(cancelled);  // No effect the second time.
  clock_.Advance(10 * kMs);
  EXPECT_EQ(aborts().count(), 0);
  first_.CompleteNext(absl::CancelledError("aborted"));
  EXPECT_EQ(aborts().sum_ns, 40 * kMs);
  clock_.Advance(59 * kMs);
  scheduler_.EndExpired();
  clock_.Advance(2 * kMs);
  first_.CompleteNext();  // Too late for the abort, but the device is free.
  EXPECT_EQ(aborts().count(), 2);
  EXPECT_EQ(aborts().sum_ns, 42 * kMs);
  scheduler_.Cancel(Submit("waits", first_));
  first_.CompleteNext();
  EXPECT_EQ(aborts().count(), 2);  // Neither jobs that only waited nor jobs that were wanted count.
}

TEST_F(SchedulerTest, TheDeadlineDropsAWaitingJob) {
  Submit("a", first_);
  Submit("b", first_, clock_.NowNs() + 5 * kMs);
  EXPECT_EQ(scheduler_.load(first_).queued_requests, 1);
  clock_.Advance(5 * kMs);
  scheduler_.EndExpired();
  EXPECT_THAT(ended_, ElementsAre("b DEADLINE_EXCEEDED"));
  EXPECT_EQ(last_->outcome.status.message(), "the deadline passed while it waited for the device");
  EXPECT_EQ(last_->queue_ns, 5 * kMs);
  EXPECT_EQ(scheduler_.load(first_).queued_requests, 0);
  EXPECT_EQ(scheduler_.load(first_).queued_bytes, 0);
  first_.CompleteNext();
  EXPECT_EQ(first_.submitted(), 1);
}

// gRPC cancels a call whose deadline has passed, perhaps before the timer does.
TEST_F(SchedulerTest, ACancellationAfterTheDeadlineIsTheDeadlines) {
  const JobId id = Submit("a", first_, clock_.NowNs() + 1000);
  clock_.Advance(1000);
  scheduler_.Cancel(id);
  scheduler_.EndExpired();
  EXPECT_THAT(ended_, ElementsAre("a DEADLINE_EXCEEDED"));
  EXPECT_EQ(first_.aborts(), 1);
}

TEST_F(SchedulerTest, AResultThatIsThereBeforeTheAbortIsTheAnswer) {
  first_.IgnoreAborts();
  const JobId id = Submit("a", first_);
  scheduler_.Cancel(id);
  first_.CompleteNext();
  Submit("b", first_);
  scheduler_.Stop(absl::UnavailableError("the server stopped"));
  first_.CompleteNext(absl::AbortedError("the device was lost"));
  EXPECT_THAT(ended_, ElementsAre("a OK", "b ABORTED"));
}

// A device that is told to abort a job while the job is being submitted does not know it yet.
TEST(SchedulerAbortTest, AJobThatIsEndedOnItsWayToTheDeviceIsAborted) {
  ScriptedDevice device("slow", {});
  const FakeClock clock;
  std::vector<Device*> devices = {&device};
  Scheduler scheduler(devices, clock);
  device.on_submit = [&](const Job& job, Device::Done&) { scheduler.Cancel(job.id); };
  std::string d;
  absl::StatusCode code = absl::StatusCode::kOk;
  auto owned = std::make_unique<Submission>();
  Submission& submission = *owned;
  submission.device = &device;
  submission.job = TestJob(&d);
  submission.done = [&](std::unique_ptr<Submission> result) {
    code = result->outcome.status.code();
  };
  scheduler.Submit(std::move(owned));
  EXPECT_EQ(code, absl::StatusCode::kCancelled);
  while (device.held() > 0) device.CompleteNext();  // Before the scheduler goes.
}

}  // namespace
}  // namespace gemmd
