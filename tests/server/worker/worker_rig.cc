// SPDX-License-Identifier: Apache-2.0
#include "tests/server/worker/worker_rig.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/device/job.h"
#include "tests/server/worker/small_product.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

std::string FreshPath() {
  static std::atomic<int> count{0};
  return absl::StrCat(testing::TempDir(), "/gemmd-script-", getpid(), "-", count++);
}

}  // namespace

WorkerDeviceOptions QuickOptions() {
  WorkerDeviceOptions options;
  options.program.binary = GEMMD_FAKE_WORKER;
  options.staging_bytes = int64_t{6} << 20;
  options.restarts.first_pause_ns = 1'000'000;
  // A slow machine must not fail.
  options.canary_timeout = kPatience;
  options.watchdog_min = kPatience;
  options.time_to_tell = kPatience;
  options.restarts.window_ns = 3600'000'000'000;
  return options;
}

WorkerRig::WorkerRig(const WorkerDeviceOptions& options, const std::string& script)
    : script_path_(FreshPath()) {
  if (!script.empty()) SetScript(script);
  setenv("GEMMD_WORKER_SCRIPT", script_path_.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  device_ = std::make_unique<WorkerDevice>(options);
  device_->WaitUntilStarted().IgnoreError();
  device_->WatchReadiness([this](const absl::Status& readiness) {
    MutexLock lock(&mutex_);
    readinesses_.push_back(readiness);
  });
}

WorkerRig::~WorkerRig() {
  if (device_ != nullptr) device_->WatchReadiness(nullptr);
  device_.reset();
  std::remove(script_path_.c_str());
}

// Renamed into place, so that a worker never reads half of it.
void WorkerRig::SetScript(const std::string& script) const {
  const std::string unfinished = script_path_ + ".part";
  std::ofstream(unfinished) << script << "\n";
  ASSERT_EQ(std::rename(unfinished.c_str(), script_path_.c_str()), 0);
}

bool WorkerRig::HasScript() const { return access(script_path_.c_str(), F_OK) == 0; }

std::vector<absl::Status> WorkerRig::readinesses() const {
  MutexLock lock(&mutex_);
  return readinesses_;
}

void WorkerRig::AwaitReadinesses(size_t count) const {
  MutexLock lock(&mutex_);
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return readinesses_.size() >= count;
  };
  EXPECT_TRUE(mutex_.AwaitWithTimeout(enough, kPatience));
}

void WorkerRig::AwaitReady() const {
  MutexLock lock(&mutex_);
  const auto is_ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return readinesses_.back().ok();
  };
  EXPECT_TRUE(mutex_.AwaitWithTimeout(is_ready, kPatience)) << readinesses_.back();
}

DeviceBlock AllocateBlock(WorkerDevice& device, int64_t bytes) {
  std::promise<absl::StatusOr<DeviceBlock>> block;
  device.memory()->Allocate(
      bytes, [&](absl::StatusOr<DeviceBlock> got) { block.set_value(std::move(got)); });
  return Awaited(block.get_future(), "a block").value();
}

void ExpectRightWhereverItGoes(WorkerRig& rig, SmallProduct& product) {
  EXPECT_THAT(rig.device().CheckSize(product.problem()), IsOk());
  const JobOutcome outcome = product.Run(rig.device());
  ASSERT_THAT(outcome.status, IsOk());
  EXPECT_TRUE(product.IsRight());
  EXPECT_GT(outcome.copy_in_ns, 0);
  EXPECT_GT(outcome.compute_ns, 0);
  EXPECT_GT(outcome.copy_out_ns, 0);
  Job job = product.JobFor(rig.device());
  job.d = {};
  {
    const JobOutcome held = Awaited(StartJob(rig.device(), job), "the outcome of a job");
    ASSERT_THAT(held.status, IsOk());
    EXPECT_TRUE(held.d.bytes() == PieceOf(product.Expected()));
  }
  EXPECT_EQ(rig.device().condition().staging_used_bytes, 0);
  EXPECT_EQ(rig.device().memory()->used_bytes(), 0);
}

void ExpectRightProduct(WorkerRig& rig) {
  SmallProduct product(20, 30, 40);
  EXPECT_THAT(product.Run(rig.device()).status, IsOk());
  EXPECT_TRUE(product.IsRight());
}

void ExpectRestarted(WorkerRig& rig, pid_t old_pid) {
  rig.AwaitReady();
  const std::vector<absl::Status> readinesses = rig.readinesses();
  ASSERT_EQ(readinesses.size(), 3u);
  EXPECT_THAT(readinesses[0], IsOk());
  EXPECT_THAT(readinesses[1], StatusIs(absl::StatusCode::kUnavailable,
                                       testing::HasSubstr("device: cuda:0 is starting again: ")));
  EXPECT_THAT(readinesses[2], IsOk());
  EXPECT_NE(rig.device().worker_pid(), old_pid);
  ExpectRightProduct(rig);
}

}  // namespace gemmd
