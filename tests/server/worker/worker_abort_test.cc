// SPDX-License-Identifier: Apache-2.0
//
// Jobs that nobody wants any more while the worker's loop has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/server/worker/fake_gpu_runtime.h"
#include "tests/server/worker/worker_fixture.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

// A GPU during whose third launch the front aborts job 1.
class AbortedRuntime final : public FakeGpuRuntime {
 public:
  explicit AbortedRuntime(const Staging& staging) : staging_(staging) {}

  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override {
    if (++launches_ == 3) staging_.control().aborted_ids[0] = 1;
    return FakeGpuRuntime::Launch(kernel, args);
  }
  // Once the worker has answered.
  int launches() const { return launches_; }

 private:
  const Staging& staging_;
  std::atomic<int> launches_ = 0;
};

class AbortedJobTest : public WorkerTest {
 protected:
  GpuRuntime& runtime() override { return runtime_; }
  int64_t staging_bytes() const override { return 1 << 20; }
  AbortedRuntime runtime_{staging_};
};

TEST_F(AbortedJobTest, EndsBetweenTwoPanels) {
  JobRequest request = JobOfRows(10000);
  request.predicted_ns = 50'000'000;  // Five panels.
  EXPECT_THAT(StatusOfJob(request), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(runtime_.launches(), 3);
  // It is not even begun once nobody wants it, and the next one is done.
  EXPECT_THAT(StatusOfJob(request), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(runtime_.launches(), 3);
  staging_.control().aborted_ids[0] = 77;
  EXPECT_THAT(StatusOfJob(request), IsOk());
  EXPECT_EQ(runtime_.launches(), 8);
  request.predicted_ns = 1000;
  EXPECT_THAT(StatusOfJob(request), IsOk());
  EXPECT_EQ(runtime_.launches(), 9);
}

// A GPU during whose launch the front aborts the job, and which is told where to look for that.
class LookingRuntime final : public FakeGpuRuntime {
 public:
  explicit LookingRuntime(const Staging& staging) : staging_(staging) {}

  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override {
    was_wanted_ = *args.abort_word.word != args.abort_word.value;
    staging_.control().aborted_ids[0] = 1;
    is_wanted_ = *args.abort_word.word != args.abort_word.value;
    return FakeGpuRuntime::Launch(kernel, args);
  }
  // Once the worker has answered.
  bool was_wanted() const { return was_wanted_; }
  bool is_wanted() const { return is_wanted_; }

 private:
  const Staging& staging_;
  bool was_wanted_ = false;
  bool is_wanted_ = true;
};

class LookingJobTest : public WorkerTest {
 protected:
  GpuRuntime& runtime() override { return runtime_; }
  int64_t staging_bytes() const override { return 1 << 20; }
  LookingRuntime runtime_{staging_};
};

// The kernel sees it and leaves D as it is, which nobody may take for a result.
TEST_F(LookingJobTest, EndsWithinItsOnlyLaunch) {
  EXPECT_THAT(StatusOfJob(JobOfRows(100)), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(runtime_.was_wanted());
  EXPECT_FALSE(runtime_.is_wanted());
}

// A GPU that takes a while over each row, as the worker believes, while the worker goes on. At the
// third launch the front aborts job 1.
class PacedRuntime final : public FakeGpuRuntime {
 public:
  static constexpr absl::Duration kRow = absl::Microseconds(5);
  explicit PacedRuntime(const Staging& staging) : staging_(staging) {}

  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override {
    const absl::Status status = FakeGpuRuntime::Launch(kernel, args);
    done_ = std::max(done_, absl::Now()) + kRow * args.problem.m;
    if (++launches_ == 3) {
      aborted_ = absl::Now();
      staging_.control().aborted_ids[0] = 1;
    }
    return status;
  }
  absl::Status Mark(Lane lane, Moment moment) override {
    if (lane == Lane::kCompute) reached_[moment] = done_;
    return FakeGpuRuntime::Mark(lane, moment);
  }
  absl::StatusOr<bool> IsReached(Moment moment) override {
    const auto at = reached_.find(moment);
    return at == reached_.end() || at->second <= absl::Now();
  }
  absl::Status Wait() override {
    while (absl::Now() < done_) absl::SleepFor(done_ - absl::Now());
    return FakeGpuRuntime::Wait();
  }

  // Once the worker has answered.
  absl::Time aborted() const { return aborted_; }
  void Forget() { launches_ = 0; }

 private:
  const Staging& staging_;
  std::map<Moment, absl::Time> reached_;
  absl::Time done_;
  absl::Time aborted_;
  int launches_ = 0;
};

class PacedJobTest : public WorkerTest {
 protected:
  GpuRuntime& runtime() override { return runtime_; }
  int64_t staging_bytes() const override { return 1 << 20; }
  PacedRuntime runtime_{staging_};
};

// What has been launched ends by itself, and with it the job: 50 ms are enough for two launches and
// the answer, in the best of a few rounds, where other work takes the processors.
TEST_F(PacedJobTest, IsLetGoSoonAfterItsAbort) {
  JobRequest request = JobOfRows(100'000);
  request.predicted_ns = 500'000'000;
  absl::Duration best = absl::InfiniteDuration();
  for (int round = 0; round < 5 && best > absl::Milliseconds(50); ++round) {
    staging_.control().aborted_ids[0] = 0;
    runtime_.Forget();
    EXPECT_THAT(StatusOfJob(request), StatusIs(absl::StatusCode::kCancelled));
    best = std::min(best, absl::Now() - runtime_.aborted());
  }
  EXPECT_GE(best, absl::Milliseconds(5));  // The GPU is done with it.
  EXPECT_LE(best, absl::Milliseconds(50));
}

}  // namespace
}  // namespace gemmd
