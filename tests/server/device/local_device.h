// SPDX-License-Identifier: Apache-2.0
//
// A device of the host without a worker process: kernels run on its own thread, so that tests may
// bring kernels of their own. Its jobs are those of the real device (launch_errand.h).
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/crossing/launcher.h"
#include "server/device/device.h"
#include "server/device/launch_errand.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

class LocalDevice final : public Device {
 public:
  // Measures the rates of the target's kernels. `threads`: see HostSide.
  LocalDevice(const Target& target, int threads);
  // Finishes submitted jobs.
  ~LocalDevice() override;

  const DeviceInfo& info() const override { return host_.info; }
  const DeviceProfile& profile() const override { return profile_; }
  void Submit(const Job& job, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort(JobId id) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<LaunchErrand> TakeNext() ABSL_LOCKS_EXCLUDED(mutex_);

  const SteadyClock clock_;
  HostSide host_;
  DeviceProfile profile_;
  Launcher launcher_;
  Mutex mutex_;
  std::vector<std::unique_ptr<LaunchErrand>> waiting_ ABSL_GUARDED_BY(mutex_);
  LaunchErrand* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool is_measured_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gemmd
