// SPDX-License-Identifier: Apache-2.0
//
// A device to whose memory, or to memory of the host, the resident tensors of a job are brought
// before the job is: as far as others can tell, that is a part of the job. Jobs that are joined
// run as one where all their tensors are there, and otherwise each by itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "server/device/device.h"
#include "server/store/device_copies.h"
#include "server/store/tensor_store.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

class ResidentDevice final : public Device {
 public:
  // The device has started.
  explicit ResidentDevice(std::unique_ptr<Device> device);
  ~ResidentDevice() override;

  const DeviceInfo& info() const override { return device_->info(); }
  const DeviceProfile& profile() const override { return device_->profile(); }
  absl::Status CheckSize(const Problem& problem) const override {
    return device_->CheckSize(problem);
  }
  int depth() const override { return device_->depth(); }
  DeviceMemory* memory() override { return device_->memory(); }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status readiness() const override { return device_->readiness(); }
  DeviceCondition condition() const override;
  // Null where the device has no memory of its own.
  const std::shared_ptr<DeviceCopies>& copies() const { return copies_; }
  int64_t worker_memory_bytes() const override { return device_->worker_memory_bytes(); }
  absl::Status RestartWorker() override { return device_->RestartWorker(); }
  void WatchReadiness(Listener listener) override { device_->WatchReadiness(std::move(listener)); }

 private:
  // A job whose tensors are on their way.
  struct Bringing {
    Job job;
    Done done;
    int64_t began_ns = 0;
  };

  // Jobs that were to run as one.
  struct Apart {
    std::atomic<size_t> left = 0;
    JobOutcome outcome;  // Each job changes its own.
    Done done;
  };

  void SubmitJoined(const Job& job, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  void SubmitApart(const Job& job, Done done) ABSL_LOCKS_EXCLUDED(mutex_);
  void SubmitBrought(std::unique_ptr<Bringing> bringing, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const SteadyClock clock_;
  Mutex mutex_;
  // Jobs that are being brought, and whether they were aborted.
  absl::flat_hash_map<JobId, bool> on_their_way_ ABSL_GUARDED_BY(mutex_);
  // By the number of what they were joined to: those that run apart.
  absl::flat_hash_map<JobId, std::vector<JobId>> apart_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  const std::shared_ptr<DeviceCopies> copies_;  // Null where the device has no memory of its own.
  std::unique_ptr<Device> device_;  // The last member: its threads call into the others.
};

// The device with the tensors of the store, which then knows where they may be brought.
std::unique_ptr<Device> WithTensors(std::unique_ptr<Device> device, TensorStore& store);

}  // namespace gemmd
