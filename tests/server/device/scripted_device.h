// SPDX-License-Identifier: Apache-2.0
//
// The device of tests: it holds each job until the test ends it, or passes jobs on to another
// device. Hooks change single steps.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/device/device.h"
#include "server/system/mutex.h"

namespace gemmd {

class ScriptedDevice final : public Device {
 public:
  // Holds jobs. Reports the features and rates of `profile`.
  ScriptedDevice(std::string name, DeviceProfile profile, int depth = 1);
  // Passes jobs on. A borrowed device must run jobs in order.
  explicit ScriptedDevice(Device& inner) : depth_(1), inner_(&inner) {}
  explicit ScriptedDevice(std::unique_ptr<Device> inner)
      : depth_(1), owned_(std::move(inner)), inner_(owned_.get()) {}

  // Jobs still held end with Unavailable; jobs that were passed on to a borrowed device are
  // finished.
  ~ScriptedDevice() override;

  // Hooks, to be set while nothing uses the device.
  // Called first for each job.
  std::function<void(const Job& job, Done& done)> on_submit;
  // Called with the device's lock when another held job becomes the oldest; with null when none is
  // left.
  std::function<void(const Job* job)> on_oldest;
  // The outcome of a job that succeeds here. By default, the job's kernel runs.
  std::function<JobOutcome(const Job& job)> compute;
  std::function<DeviceCondition()> get_condition;
  DeviceMemory* tensor_memory = nullptr;

  const DeviceInfo& info() const override { return inner_ != nullptr ? inner_->info() : info_; }
  const DeviceProfile& profile() const override {
    return inner_ != nullptr ? inner_->profile() : profile_;
  }
  int depth() const override { return depth_; }
  DeviceMemory* memory() override { return inner_ != nullptr ? inner_->memory() : tensor_memory; }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends a held job at once, on the calling thread.
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status readiness() const override ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceCondition condition() const override {
    return get_condition ? get_condition() : DeviceCondition();
  }
  void WatchReadiness(Listener listener) override;

  // Changes the readiness and calls the listener before it returns. Threads: one at a time, and not
  // concurrently with WatchReadiness.
  void SetReadiness(const absl::Status& readiness) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether later jobs are passed on, or computed in Submit, instead of being held: for a server
  // that must start (canary) or work for a while. Jobs already held stay held.
  void RunJobs(bool run) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until `count` jobs are held. Returns false on `timeout`.
  bool WaitForHeld(int count, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  int held() const ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on an aborted job stays held.
  void IgnoreAborts() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls of Abort since construction.
  int aborts() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Jobs submitted since construction.
  int submitted() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the oldest held job on the calling thread with the status, or computes it or passes it on
  // if the status is OK. A job must be held.
  void CompleteNext(const absl::Status& status = absl::OkStatus()) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the oldest held job with this outcome, and computes nothing.
  void CompleteNextWith(JobOutcome outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  // Computes the latest held job, or passes it on.
  void CompleteLast() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Held {
    Job job;
    Done done;
  };

  JobOutcome Compute(const Job& job) const;
  void Run(Held held) ABSL_LOCKS_EXCLUDED(mutex_);
  Held Take(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Constant after construction.
  DeviceInfo info_;
  DeviceProfile profile_;
  const int depth_;
  std::unique_ptr<Device> owned_;
  Device* const inner_ = nullptr;  // Null if it computes jobs itself.

  Listener listener_;
  mutable Mutex mutex_;
  absl::Status readiness_ ABSL_GUARDED_BY(mutex_);
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
  bool run_jobs_ ABSL_GUARDED_BY(mutex_) = inner_ != nullptr;
  bool ignores_aborts_ ABSL_GUARDED_BY(mutex_) = false;
  int submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  int aborts_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
