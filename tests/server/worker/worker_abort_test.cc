// SPDX-License-Identifier: Apache-2.0
//
// Jobs that are aborted while the worker's loop has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "tests/server/worker/fake_gpu_runtime.h"
#include "tests/server/worker/worker_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/timed.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

// A GPU during whose third launch the daemon aborts job 1.
class AbortedRuntime final : public FakeGpuRuntime {
 public:
  explicit AbortedRuntime(const Staging& staging) : staging_(staging) {}

  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override {
    if (++launches_ == 3) staging_.control().aborted_ids[0] = 1;
    return FakeGpuRuntime::Launch(kernel, args);
  }
  // Call it after the worker has answered.
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
  // An aborted job is not begun, and the next one is done.
  EXPECT_THAT(StatusOfJob(request), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(runtime_.launches(), 3);
  staging_.control().aborted_ids[0] = 77;
  EXPECT_THAT(StatusOfJob(request), IsOk());
  EXPECT_EQ(runtime_.launches(), 8);
  request.predicted_ns = 1000;
  EXPECT_THAT(StatusOfJob(request), IsOk());
  EXPECT_EQ(runtime_.launches(), 9);
}

// A GPU during whose launch the daemon aborts the job, and which is told where to check for that.
class LookingRuntime final : public FakeGpuRuntime {
 public:
  explicit LookingRuntime(const Staging& staging) : staging_(staging) {}

  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override {
    was_wanted_ = *args.abort_word.word != args.abort_word.value;
    staging_.control().aborted_ids[0] = 1;
    is_wanted_ = *args.abort_word.word != args.abort_word.value;
    return FakeGpuRuntime::Launch(kernel, args);
  }
  // Call it after the worker has answered.
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

// The kernel notices the abort and leaves D as it is, so D must not be used.
TEST_F(LookingJobTest, EndsWithinItsOnlyLaunch) {
  EXPECT_THAT(StatusOfJob(JobOfRows(100)), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(runtime_.was_wanted());
  EXPECT_FALSE(runtime_.is_wanted());
}

// A GPU that takes some time for each row, as the worker sees it, while the worker continues. At
// the third launch the daemon aborts job 1.
class PacedRuntime : public FakeGpuRuntime {
 public:
  static constexpr int64_t kRowNs = 5'000;
  explicit PacedRuntime(const Staging& staging) : staging_(staging) {}

  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override {
    const absl::Status status = FakeGpuRuntime::Launch(kernel, args);
    done_ns_ = std::max(done_ns_, NowNs()) + kRowNs * args.problem.m;
    if (++launches_ == 3) {
      aborted_ns_ = NowNs();
      staging_.control().aborted_ids[0] = 1;
    }
    return status;
  }
  absl::Status Mark(Lane lane, Moment moment) override {
    if (lane == Lane::kCompute) reached_ns_[moment] = done_ns_;
    return FakeGpuRuntime::Mark(lane, moment);
  }
  absl::StatusOr<bool> IsReached(Moment moment) override {
    const auto at = reached_ns_.find(moment);
    if (at == reached_ns_.end() || at->second <= NowNs()) return true;
    Look();
    return false;
  }
  absl::Status Wait() override {
    while (NowNs() < done_ns_) Look();
    return FakeGpuRuntime::Wait();
  }

  virtual int64_t NowNs() const = 0;

  // Call it after the worker has answered.
  int64_t aborted_ns() const { return aborted_ns_; }
  void Forget() { launches_ = 0; }

 private:
  // Lets some time pass.
  virtual void Look() = 0;

  const Staging& staging_;
  std::map<Moment, int64_t> reached_ns_;
  int64_t done_ns_ = 0;
  int64_t aborted_ns_ = 0;
  int launches_ = 0;
};

// Its time passes when the worker asks for it.
class SimulatedTimeRuntime final : public PacedRuntime {
 public:
  using PacedRuntime::PacedRuntime;
  int64_t NowNs() const override { return now_ns_; }

 private:
  void Look() override { now_ns_ += 50'000; }

  int64_t now_ns_ = 0;
};

class RealTimeRuntime final : public PacedRuntime {
 public:
  using PacedRuntime::PacedRuntime;
  int64_t NowNs() const override { return clock_.NowNs(); }

 private:
  void Look() override { absl::SleepFor(absl::Microseconds(50)); }

  const SteadyClock clock_;
};

template <typename Runtime>
class PacedJob : public WorkerTest {
 protected:
  GpuRuntime& runtime() override { return runtime_; }
  int64_t staging_bytes() const override { return 1 << 20; }

  // How long the job took to end after its abort, at a moment when two launches are in progress.
  int64_t AbortNs() {
    JobRequest request = JobOfRows(100'000);
    request.predicted_ns = 500'000'000;
    staging_.control().aborted_ids[0] = 0;
    runtime_.Forget();
    EXPECT_THAT(StatusOfJob(request), StatusIs(absl::StatusCode::kCancelled));
    return runtime_.NowNs() - runtime_.aborted_ns();
  }

  Runtime runtime_{staging_};
};

using PacedJobTest = PacedJob<SimulatedTimeRuntime>;

// Launches in progress end by themselves, and with them the job.
TEST_F(PacedJobTest, IsLetGoSoonAfterItsAbort) {
  const int64_t took_ns = AbortNs();
  EXPECT_GE(took_ns, 5 * kMs);  // The GPU is done with it.
  EXPECT_LE(took_ns, 50 * kMs);
}

using PacedJobTimed = PacedJob<RealTimeRuntime>;

// 50 ms are enough for two launches and the answer, in the best of a few rounds if other work uses
// the processors.
TEST_F(PacedJobTimed, IsLetGoSoonAfterItsAbort) {
  int64_t best_ns = AbortNs();
  for (int round = 1; round < 5 && best_ns > 50 * kMs; ++round) {
    best_ns = std::min(best_ns, AbortNs());
  }
  EXPECT_GE(best_ns, 5 * kMs);
  HoldsTimed("from the abort of a job on a GPU to its answer", 50,
             static_cast<double>(best_ns) / 1e6, "ms");
}

}  // namespace
}  // namespace gemmd
