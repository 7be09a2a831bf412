// SPDX-License-Identifier: Apache-2.0
//
// A device in simulated time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "server/device/device.h"
#include "tests/testing/fake_clock.h"

namespace gemmd {

// Takes the time that the test gives for each job, on a FakeClock, one job after the other. Holds
// up to `depth` jobs.
class TimedDevice final : public Device {
 public:
  TimedDevice(const Clock& clock, int depth) : clock_(clock), depth_(depth) {}

  const DeviceInfo& info() const override { return info_; }
  const DeviceProfile& profile() const override { return profile_; }
  int depth() const override { return depth_; }

  // The service time, in nanoseconds, is stored in place of A.
  void Submit(const Job& job, Done done) override {
    const auto service_ns = *reinterpret_cast<const int64_t*>(job.a.pieces[0].data());
    if (held_.empty()) end_ns_ = clock_.NowNs() + service_ns;
    held_.push_back({job.id, service_ns, std::move(done)});
  }
  void Abort(JobId id) override {
    for (size_t i = 0; i < held_.size(); ++i) {
      if (held_[i].id == id) return End(i, absl::CancelledError("aborted"));
    }
  }

  int64_t end_ns() const { return held_.empty() ? kNoDeadlineNs : end_ns_; }
  void End() { End(0, absl::OkStatus()); }

 private:
  struct Held {
    JobId id = 0;
    int64_t service_ns = 0;
    Done done;
  };

  void End(size_t index, absl::Status status) {
    Done done = std::move(held_[index].done);
    const int64_t service_ns = held_[index].service_ns;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
    if (index == 0 && !held_.empty()) end_ns_ = clock_.NowNs() + held_.front().service_ns;
    std::move(done)({.status = std::move(status), .compute_ns = service_ns});
  }

  const Clock& clock_;
  const int depth_;
  DeviceInfo info_;
  DeviceProfile profile_;
  std::deque<Held> held_;
  int64_t end_ns_ = 0;
};

}  // namespace gemmd
