// SPDX-License-Identifier: Apache-2.0
//
// The devices of the host: `cpu` runs the rows of the libraries, `sim:<chip>` those of the
// simulator. Each has one thread of its own, which kernels multiply by the threads they are given.
// Operands are read where the request left them, or put together first where they are in pieces.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/device/held_bytes.h"
#include "server/device/operands.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// Final: its thread may call the device until the destructor has joined it, so there must be no
// destructor of a derived class before.
class HostDevice final : public Device {
 public:
  // Starts the thread and measures the rates of the target's kernels on it: HostTarget() makes
  // `cpu`, a simulator's target `sim:<chip>`. `threads` computing threads; 0 takes every core that
  // this process may run on. `poisons_freed`: server/device/held_bytes.h.
  HostDevice(const Target& target, int threads, bool poisons_freed = false);

  // Finishes what was submitted.
  ~HostDevice() override;

  const DeviceInfo& info() const override { return info_; }
  const DeviceProfile& profile() const override { return profile_; }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  // A job that waits is answered in its turn, without work.
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Pending {
    Job job;
    Done done;
    int64_t submitted_ns = 0;
    bool is_aborted = false;
  };
  struct FreeDeleter {
    void operator()(std::byte* memory) const;
  };

  void Run(const Target& target) ABSL_LOCKS_EXCLUDED(mutex_);
  bool TakeNext(Pending& next) ABSL_LOCKS_EXCLUDED(mutex_);
  JobOutcome Execute(const Pending& pending);
  absl::StatusOr<GemmArgs> Prepare(const Job& job, Gathering& gathering, HeldBytes& d);
  absl::StatusOr<std::byte*> PlaceOutput(const Job& job, HeldBytes& d);
  absl::Status ReserveWorkspace(int64_t bytes);
  void DropWorkspace();

  // Constant after construction.
  const SteadyClock clock_;
  const bool poisons_freed_;
  DeviceInfo info_;
  WarmMemory memory_;
  DeviceProfile profile_;

  Mutex mutex_;
  std::list<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::list<Pending> spare_ ABSL_GUARDED_BY(mutex_);  // Entries of jobs that no longer wait.
  JobId running_id_ ABSL_GUARDED_BY(mutex_) = 0;      // 0: none, or one that is never aborted.
  bool measured_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<bool> abort_ = false;  // Ends the job that runs. Changed under the mutex.

  // Owned by the device's thread.
  std::unique_ptr<std::byte, FreeDeleter> workspace_;
  int64_t workspace_bytes_ = 0;

  std::thread thread_;
};

}  // namespace gemmd
