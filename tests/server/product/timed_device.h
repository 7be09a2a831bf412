// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "tests/server/device/scripted_device.h"
#include "tests/testing/fake_clock.h"

namespace gemmd {

// Lets the device run one job after the other in simulated time. Each takes the nanoseconds that
// are stored in place of its A. `end_ns` becomes the time at which the oldest ends, which the test
// then completes; it must outlive the device.
inline void RunInTime(ScriptedDevice& device, const Clock& clock, int64_t& end_ns) {
  const auto service_ns = [](const Job& job) {
    return *reinterpret_cast<const int64_t*>(job.a.pieces[0].data());
  };
  device.on_oldest = [=, &clock, &end_ns](const Job* job) {
    end_ns = job == nullptr ? kNoDeadlineNs : clock.NowNs() + service_ns(*job);
  };
  device.compute = [=](const Job& job) {
    return JobOutcome{.status = {}, .compute_ns = service_ns(job)};
  };
}

}  // namespace gemmd
