// SPDX-License-Identifier: Apache-2.0
//
// A device that holds every job until the test ends it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/device/device.h"
#include "server/system/mutex.h"

namespace gemmd {

class FakeDevice final : public Device {
 public:
  // Reports the features and rates of `profile`.
  FakeDevice(std::string name, DeviceProfile profile, int depth = 1);

  // Jobs still held end with Unavailable.
  ~FakeDevice() override;

  const DeviceInfo& info() const override { return info_; }
  const DeviceProfile& profile() const override { return profile_; }
  int depth() const override { return depth_; }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends a held job at once, on the calling thread.
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status readiness() const override ABSL_LOCKS_EXCLUDED(mutex_);
  void WatchReadiness(Listener listener) override;

  // Changes the readiness and calls the listener before it returns. Threads: one at a time, and not
  // concurrently with WatchReadiness.
  void SetReadiness(const absl::Status& readiness) ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on every job is run by its own kernel, in Submit, instead of being held: for a server
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

  // Ends the oldest held job on the calling thread: with its product if `status` is OK, otherwise
  // with the status. A job must be held.
  void CompleteNext(const absl::Status& status = absl::OkStatus()) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for the latest job.
  void CompleteLast() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Held {
    Job job;
    Done done;
  };

  static void Complete(Held held, const absl::Status& status);

  // Constant after construction.
  DeviceInfo info_;
  DeviceProfile profile_;
  const int depth_;

  Listener listener_;
  mutable Mutex mutex_;
  absl::Status readiness_ ABSL_GUARDED_BY(mutex_);
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
  bool run_jobs_ ABSL_GUARDED_BY(mutex_) = false;
  bool ignores_aborts_ ABSL_GUARDED_BY(mutex_) = false;
  int submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  int aborts_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
