// SPDX-License-Identifier: Apache-2.0
//
// The devices of the host that the tests of a process share: to measure the rates of another one
// takes half a second.
#pragma once

#include <latch>
#include <string>
#include <utility>

#include "kernels/cpu/host.h"
#include "server/device/host_device.h"
#include "tests/testing/test_kernel.h"

namespace gemmd {

// `cpu`, on one thread.
inline HostDevice& SharedHost() {
  static HostDevice host(HostTarget(), 1);
  return host;
}

// `sim:sm_90`, on two threads.
inline HostDevice& SharedSimulator() {
  static HostDevice simulator({.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90}, 2);
  return simulator;
}

// A shared device where one is needed that goes away.
class BorrowedHost final : public Device {
 public:
  explicit BorrowedHost(HostDevice& host = SharedHost()) : host_(host) {}
  // Finishes what was submitted, as the end of a device does: jobs are done in their order.
  ~BorrowedHost() override {
    std::latch ended(1);  // Of the standard library: ThreadSanitizer sees whom it orders.
    std::string d;
    host_.Submit(TestJob(&d), [&ended](JobOutcome) { ended.count_down(); });
    ended.wait();
  }

  const DeviceInfo& info() const override { return host_.info(); }
  const DeviceProfile& profile() const override { return host_.profile(); }
  void Submit(const Job& job, Done done) override { host_.Submit(job, std::move(done)); }
  void Abort(JobId id) override { host_.Abort(id); }

 private:
  HostDevice& host_;
};

}  // namespace gemmd
