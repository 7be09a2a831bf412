// SPDX-License-Identifier: Apache-2.0
//
// A device of a fake worker, and its script.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/device/worker_device.h"
#include "server/system/mutex.h"
#include "tests/testing/patience.h"

namespace gemmd {

class SmallProduct;

// Short limits, so that tests need not wait long.
WorkerDeviceOptions QuickOptions();

class WorkerRig {
 public:
  // If `script` is not empty, the worker reads it before its first call.
  explicit WorkerRig(const WorkerDeviceOptions& options = QuickOptions(),
                     const std::string& script = "");
  ~WorkerRig();

  WorkerDevice& device() { return *device_; }
  // Destroys the device.
  void Stop() { device_.reset(); }

  // Sets the actions of the worker, or of the next one, from its next call on.
  void SetScript(const std::string& script) const;
  // Whether no worker has read it yet.
  bool HasScript() const;

  // The readinesses so far; the first is the one at construction.
  std::vector<absl::Status> readinesses() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for `count` of them.
  void AwaitReadinesses(size_t count) const ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitReady() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::string script_path_;
  mutable Mutex mutex_;
  std::vector<absl::Status> readinesses_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WorkerDevice> device_;
};

// A new block of the device's memory.
DeviceBlock AllocateBlock(WorkerDevice& device, int64_t bytes);
// Checks that the product is right in memory of the job and in memory that the device provides,
// takes time in every stage, and leaves nothing on the device.
void ExpectRightWhereverItGoes(WorkerRig& rig, SmallProduct& product);
// Checks that a product of the rig's device is right.
void ExpectRightProduct(WorkerRig& rig);
// Checks that the worker was lost once and has been restarted.
void ExpectRestarted(WorkerRig& rig, pid_t old_pid);

}  // namespace gemmd
