// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "server/product/scheduler.h"
#include "tests/server/device/scripted_device.h"
#include "tests/testing/patience.h"
#include "tests/testing/test_kernel.h"
#include "tests/testing/timed.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

class ExpiryTimerTest : public ::testing::Test {
 protected:
  ~ExpiryTimerTest() override { scheduler_.Stop(absl::UnavailableError("over")); }

  void Submit(int64_t in_ns) {
    const int64_t deadline_ns = clock_.NowNs() + in_ns;
    auto owned = std::make_unique<Submission>();
    Submission& submission = *owned;
    submission.device = &device_;
    submission.job = TestJob(&outputs_.emplace_back());
    submission.deadline_ns = deadline_ns;
    submission.done = [this, deadline_ns](std::unique_ptr<Submission> result) {
      const int64_t late_ns = clock_.NowNs() - deadline_ns;
      MutexLock lock(&mutex_);
      codes_.push_back(result->outcome.status.code());
      late_ns_.push_back(late_ns);
    };
    scheduler_.Submit(std::move(owned));
  }

  bool HaveEnded(size_t count) {
    MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return codes_.size() >= count; }, kPatience);
  }

  const SteadyClock clock_;
  ScriptedDevice device_{"fake", {}};
  std::vector<Device*> devices_ = {&device_};
  Scheduler scheduler_{devices_, clock_};
  ExpiryTimer timer_{scheduler_, clock_};
  std::deque<std::string> outputs_;
  Mutex mutex_;
  std::vector<absl::StatusCode> codes_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> late_ns_ ABSL_GUARDED_BY(mutex_);
};

// No other event occurs: the running job is held, and nobody cancels.
TEST_F(ExpiryTimerTest, EndsWhatWaitsAndWhatRunsAtTheirDeadlines) {
  Submit(3'600'000 * kMs);
  for (const int64_t ms : {90, 30, 60, 10, 45}) Submit(ms * kMs);
  ASSERT_TRUE(HaveEnded(5));
  {
    MutexLock lock(&mutex_);
    EXPECT_EQ(std::count(codes_.begin(), codes_.end(), absl::StatusCode::kDeadlineExceeded), 5);
    // No job ends early.
    EXPECT_GE(*std::min_element(late_ns_.begin(), late_ns_.end()), 0);
  }
  EXPECT_EQ(scheduler_.load(device_).queued_requests, 0);
  EXPECT_EQ(device_.held(), 1);
}

using ExpiryTimerTimed = ExpiryTimerTest;

// A busy machine may be late once, but not each time.
TEST_F(ExpiryTimerTimed, EndsWhatWaitsSoonAfterItsDeadline) {
  Submit(3'600'000 * kMs);
  for (const int64_t ms : {90, 30, 60, 10, 45}) Submit(ms * kMs);
  ASSERT_TRUE(HaveEnded(5));
  MutexLock lock(&mutex_);
  const int64_t min_ns = *std::min_element(late_ns_.begin(), late_ns_.end());
  HoldsTimed("from a deadline to the end of its product, the best of five", 10,
             static_cast<double>(min_ns) / 1e6, "ms");
}

TEST_F(ExpiryTimerTest, AbortsWhatRuns) {
  // The deadline doubles until it suffices for the job to begin.
  size_t jobs = 0;
  for (int64_t ms = 20; device_.submitted() == 0 && ms < 100'000; ms *= 2) {
    Submit(ms * kMs);
    ASSERT_TRUE(HaveEnded(++jobs));
  }
  EXPECT_EQ(device_.aborts(), 1);
  EXPECT_EQ(device_.held(), 0);
}

}  // namespace
}  // namespace gemmd
