// SPDX-License-Identifier: Apache-2.0
//
// Jobs of host devices that are aborted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/kernel.h"
#include "tests/server/device/shared_host.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_kernel.h"
#include "tests/testing/timed.h"

namespace gemmd {
namespace {

// Submits a job and returns its outcome as a future.
std::future<JobOutcome> Start(Device& device, const Job& job) {
  auto ended = std::make_unique<std::promise<JobOutcome>>();
  std::future<JobOutcome> outcome = ended->get_future();
  device.Submit(
      job, [ended = std::move(ended)](JobOutcome result) { ended->set_value(std::move(result)); });
  return outcome;
}

// 4 KiB of operands, whose product takes hours on any processor.
class HostAbortTest : public ::testing::Test {
 protected:
  HostAbortTest() : kernel_(**FindKernel("mma.m16n8k16.f32.f16.f16.f32")) {
    Problem& problem = slow_.problem;
    problem.m = problem.n = 2048;
    problem.k = 1;
    problem.batch = int64_t{1} << 24;
    problem.a = *TightLayout("a", ElementType::kF16, Order::kRowMajor, problem.m, 1);
    problem.b = *TightLayout("b", ElementType::kF16, Order::kRowMajor, 1, problem.n);
    problem.a.batch_stride_bytes = problem.b.batch_stride_bytes = 0;
    problem.d = *TightLayout("d", ElementType::kF32, Order::kRowMajor, problem.m, problem.n);
    problem.d.batch_stride_bytes = 0;
    slow_.id = 1;
    slow_.kernel = &kernel_;
    slow_.workspace_bytes = *kernel_.workspace_bytes(problem);
    slow_.a = slow_.b = pieces_.Add(operands_);
    slow_.d_bytes = problem.d.lines() * problem.d.line_stride_bytes();
    d_.resize(static_cast<size_t>(slow_.d_bytes));
    slow_.d.memory = reinterpret_cast<std::byte*>(d_.data());
  }

  LocalDevice& device_ = SharedSimulator();
  const Kernel& kernel_;
  const std::vector<std::byte> operands_ = std::vector<std::byte>(4096);
  SourcePieces pieces_;
  std::string d_;
  Job slow_;
};

TEST_F(HostAbortTest, FreesTheDevice) {
  std::future<JobOutcome> slow = Start(device_, slow_);
  EXPECT_EQ(slow.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  device_.Abort(1);
  std::string d;
  std::future<JobOutcome> next = Start(device_, TestJob(&d));
  EXPECT_THAT(Awaited(std::move(slow), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Awaited(std::move(next), "the job after it").status, IsOk());
}

using HostAbortTimed = HostAbortTest;

// 50 ms with free cores and an optimized build.
TEST_F(HostAbortTimed, FreesTheDeviceSoon) {
  std::future<JobOutcome> slow = Start(device_, slow_);
  EXPECT_EQ(slow.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  const absl::Time aborted = absl::Now();
  device_.Abort(1);
  std::string d;
  std::future<JobOutcome> next = Start(device_, TestJob(&d));
  EXPECT_THAT(Awaited(std::move(slow), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Awaited(std::move(next), "the job after it").status, IsOk());
  HoldsTimed("from the abort of a product of the simulator to the end of the next job", 1000,
             absl::ToDoubleMilliseconds(absl::Now() - aborted), "ms");
}

// Counts the pieces that are copied. The first two threads that have copied a piece wait until the
// test opens the gate.
class CopyGate final : public PieceKeeper {
 public:
  void Release(size_t /*first*/, size_t count) override {
    copied_ += static_cast<int64_t>(count);
    EXPECT_TRUE(open_.WaitForNotificationWithTimeout(kPatience));
  }
  void Open() { open_.Notify(); }
  int64_t copied() const { return copied_; }

 private:
  absl::Notification open_;
  std::atomic<int64_t> copied_ = 0;
};

// Each of two threads checks the flag before every 4 MiB.
TEST_F(HostAbortTest, EndsThePuttingTogetherOfALargeOperand) {
  // 16 GiB, made of one 1 MiB part.
  const std::vector<std::byte> part(size_t{1} << 20);
  CopyGate gate;
  SourcePieces pieces;
  std::string d;
  Job job = TestJob(&d);
  job.id = 7;
  job.a = pieces.Add(PieceList(16 << 10, part), &gate);
  std::future<JobOutcome> ended = Start(device_, job);
  EXPECT_TRUE(Eventually([&] { return gate.copied() > 0; }));
  device_.Abort(7);
  gate.Open();
  EXPECT_THAT(Awaited(std::move(ended), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LE(gate.copied(), 2 * 4);
}

TEST_F(HostAbortTimed, EndsThePuttingTogetherOfALargeOperandSoon) {
  // 16 GiB to copy, made of one 64 MiB part.
  const std::vector<std::byte> part(size_t{64} << 20);
  SourcePieces pieces;
  std::string d;
  Job job = TestJob(&d);
  job.id = 7;
  job.a = pieces.Add(PieceList(256, part));
  std::future<JobOutcome> ended = Start(device_, job);
  EXPECT_EQ(ended.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  const absl::Time aborted = absl::Now();
  device_.Abort(7);
  EXPECT_THAT(Awaited(std::move(ended), "the aborted job").status,
              StatusIs(absl::StatusCode::kCancelled));
  HoldsTimed("from the abort of a job whose operand is put together to its end", 1000,
             absl::ToDoubleMilliseconds(absl::Now() - aborted), "ms");
}

TEST_F(HostAbortTest, EndsAJobThatWaitsWithoutItsWork) {
  static std::atomic<int> launches;
  launches = 0;
  KernelFamily family = *TestKernel().family;
  family.launch = [](const Kernel&, const GemmArgs&) {
    ++launches;
    return absl::OkStatus();
  };
  Kernel counted = TestKernel();
  counted.family = &family;
  std::string d[2];
  Job waits = TestJob(&d[0]);
  waits.kernel = &counted;
  waits.id = 2;
  Job other = TestJob(&d[1]);
  other.kernel = &counted;
  other.id = 3;
  std::future<JobOutcome> slow = Start(device_, slow_);
  std::future<JobOutcome> waiting = Start(device_, waits);
  std::future<JobOutcome> last = Start(device_, other);
  device_.Abort(2);
  device_.Abort(0);
  device_.Abort(99);
  EXPECT_EQ(slow.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  device_.Abort(1);
  EXPECT_THAT(Awaited(std::move(slow), "the job that runs").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Awaited(std::move(waiting), "the job that waits").status,
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(Awaited(std::move(last), "the job nobody aborts").status, IsOk());
  EXPECT_EQ(launches, 1);
}

// An abort of a job that has ended does not affect the next one, which has no id.
TEST_F(HostAbortTest, DoesNothingToOtherJobs) {
  std::string d;
  Job job = TestJob(&d);
  job.id = 5;
  EXPECT_THAT(Awaited(Start(device_, job), "the first job").status, IsOk());
  device_.Abort(5);
  EXPECT_THAT(Awaited(Start(device_, TestJob(&d)), "the second job").status, IsOk());
}

}  // namespace
}  // namespace gemmd
