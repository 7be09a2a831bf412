// SPDX-License-Identifier: Apache-2.0
//
// Host devices that all tests of a process share, because measuring the rates of another one takes
// half a second.
#pragma once

#include <latch>
#include <string>
#include <utility>

#include "kernels/cpu/host.h"
#include "tests/server/device/local_device.h"
#include "tests/testing/test_kernel.h"

namespace gemmd {

// `cpu`, on one thread.
inline LocalDevice& SharedHost() {
  static LocalDevice host(HostTarget(), 1);
  return host;
}

// `sim:sm_90`, on two threads.
inline LocalDevice& SharedSimulator() {
  static LocalDevice simulator({.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90}, 2);
  return simulator;
}

// A shared device, for code that destroys its devices.
class BorrowedHost final : public Device {
 public:
  explicit BorrowedHost(LocalDevice& host = SharedHost()) : host_(host) {}
  // Finishes all submitted jobs, like the destructor of a device: jobs are done in order.
  ~BorrowedHost() override {
    std::latch ended(1);  // From the standard library, which ThreadSanitizer understands.
    std::string d;
    host_.Submit(TestJob(&d), [&ended](JobOutcome) { ended.count_down(); });
    ended.wait();
  }

  const DeviceInfo& info() const override { return host_.info(); }
  const DeviceProfile& profile() const override { return host_.profile(); }
  void Submit(const Job& job, Done done) override { host_.Submit(job, std::move(done)); }
  void Abort(JobId id) override { host_.Abort(id); }

 private:
  LocalDevice& host_;
};

}  // namespace gemmd
