// SPDX-License-Identifier: Apache-2.0
//
// The scheduler with a device that works on several jobs at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "server/product/scheduler.h"
#include "tests/server/device/scripted_device.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/test_kernel.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

using ::testing::ElementsAre;

class SchedulerDepthTest : public ::testing::Test {
 protected:
  JobId Submit(const std::string& name, int64_t predicted_ns, int64_t deadline_ns = kNoDeadlineNs) {
    return scheduler_.Submit(Make(name, predicted_ns, deadline_ns));
  }
  std::unique_ptr<Submission> Make(const std::string& name, int64_t predicted_ns,
                                   int64_t deadline_ns) {
    auto owned = std::make_unique<Submission>();
    Submission& submission = *owned;
    submission.device = &device_;
    submission.job = TestJob(&outputs_.emplace_back());
    submission.predicted_ns = predicted_ns;
    submission.deadline_ns = deadline_ns;
    submission.done = [this, name](std::unique_ptr<Submission> result) {
      ended_.push_back(name + " " + absl::StatusCodeToString(result->outcome.status.code()));
    };
    return owned;
  }
  int64_t backlog_ns() const { return scheduler_.load(device_).backlog_ns; }
  int64_t busy_ns() const { return scheduler_.load(device_).busy_ns; }

  FakeClock clock_;
  std::deque<std::string> outputs_;
  ScriptedDevice device_{"deep", {}, /*depth=*/3};
  std::vector<Device*> devices_ = {&device_};
  Scheduler scheduler_{devices_, clock_};
  std::vector<std::string> ended_;
};

TEST_F(SchedulerDepthTest, GivesTheDeviceAsManyJobsAsItSays) {
  for (const char* name : {"a", "b", "c", "d", "e"}) Submit(name, kMs);
  EXPECT_EQ(device_.held(), 3);
  device_.CompleteNext();
  EXPECT_EQ(device_.held(), 3);
  for (int i = 0; i < 4; ++i) device_.CompleteNext();
  EXPECT_THAT(ended_, ElementsAre("a OK", "b OK", "c OK", "d OK", "e OK"));
}

TEST_F(SchedulerDepthTest, TakesTheEndsOfJobsInAnyOrder) {
  for (const char* name : {"a", "b", "c", "d"}) Submit(name, kMs);
  device_.CompleteLast();
  device_.CompleteLast();
  device_.CompleteNext();
  device_.CompleteNext();
  EXPECT_THAT(ended_, ElementsAre("c OK", "d OK", "a OK", "b OK"));
}

// Jobs that the device holds no longer take turns.
TEST_F(SchedulerDepthTest, GivesItNoMoreThanTwentyMillisecondsAhead) {
  Submit("a", 12 * kMs);
  Submit("b", 12 * kMs);
  Submit("c", 12 * kMs);
  EXPECT_EQ(device_.held(), 2);
  clock_.Advance(6 * kMs);
  Submit("d", 12 * kMs);
  EXPECT_EQ(device_.held(), 3);
  while (device_.held() > 0) device_.CompleteNext();
}

TEST_F(SchedulerDepthTest, GivesItOneLongJobAlone) {
  Submit("a", 40 * kMs);
  Submit("b", kMs);
  EXPECT_EQ(device_.held(), 1);
  clock_.Advance(22 * kMs);
  Submit("c", kMs);
  EXPECT_EQ(device_.held(), 3);
  while (device_.held() > 0) device_.CompleteNext();
}

TEST_F(SchedulerDepthTest, CountsAllThatTheDeviceHas) {
  for (const char* name : {"a", "b", "c", "d"}) Submit(name, 10 * kMs);
  EXPECT_EQ(backlog_ns(), 40 * kMs);
  clock_.Advance(4 * kMs);
  EXPECT_EQ(backlog_ns(), 36 * kMs);
  Admission admission({.max_requests = 1, .max_bytes = 0});
  const std::vector<Scheduler::Refused> refused =
      scheduler_.SubmitTogether(Alone(Make("e", kMs, clock_.NowNs() + 30 * kMs)), &admission);
  ASSERT_EQ(refused.size(), 1U);
  EXPECT_EQ(refused[0].why, Verdict::kWait);
  while (device_.held() > 0) device_.CompleteNext();
  EXPECT_EQ(backlog_ns(), 0);
}

TEST_F(SchedulerDepthTest, IsBusyOnceAtATime) {
  Submit("a", 10 * kMs);
  Submit("b", 10 * kMs);
  clock_.Advance(10 * kMs);
  EXPECT_EQ(busy_ns(), 10 * kMs);
  device_.CompleteNext();
  clock_.Advance(5 * kMs);
  EXPECT_EQ(busy_ns(), 15 * kMs);
  device_.CompleteNext();
  clock_.Advance(5 * kMs);
  EXPECT_EQ(busy_ns(), 15 * kMs);
  Submit("c", 10 * kMs);
  clock_.Advance(kMs);
  EXPECT_EQ(busy_ns(), 16 * kMs);
  device_.CompleteNext();
}

// A job that would begin too late behind the device's jobs is not launched.
TEST_F(SchedulerDepthTest, DropsWhatComesTooLateBehindTheOthers) {
  Submit("a", 10 * kMs);
  Submit("b", 8 * kMs);
  EXPECT_EQ(device_.held(), 2);
  Submit("late", 4 * kMs, clock_.NowNs() + 15 * kMs);
  EXPECT_THAT(ended_, ElementsAre("late DEADLINE_EXCEEDED"));
  while (device_.held() > 0) device_.CompleteNext();
}

TEST_F(SchedulerDepthTest, AbortsTheRightOneOfThose) {
  Submit("a", kMs);
  const JobId second = Submit("b", kMs);
  Submit("c", kMs);
  scheduler_.Cancel(second);
  EXPECT_THAT(ended_, ElementsAre("b CANCELLED"));
  EXPECT_EQ(device_.held(), 2);
  Submit("d", kMs, clock_.NowNs() + 10 * kMs);
  clock_.Advance(10 * kMs);
  scheduler_.EndExpired();
  EXPECT_THAT(ended_, ElementsAre("b CANCELLED", "d DEADLINE_EXCEEDED"));
  scheduler_.Stop(absl::UnavailableError("over"));
  EXPECT_THAT(ended_,
              ElementsAre("b CANCELLED", "d DEADLINE_EXCEEDED", "a UNAVAILABLE", "c UNAVAILABLE"));
}

}  // namespace
}  // namespace gemmd
