// SPDX-License-Identifier: Apache-2.0
//
// Moments of the steady clock, with absl's durations between them. absl::Time is the wall clock's,
// which may jump: by it, a transfer would run out of time that it had.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace gemmd {

class SteadyTime {
 public:
  static SteadyTime Now() {
    return SteadyTime(absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()));
  }
  static SteadyTime InfinitePast() { return SteadyTime(-absl::InfiniteDuration()); }

  friend SteadyTime operator+(SteadyTime time, absl::Duration later) {
    return SteadyTime(time.since_start_ + later);
  }
  friend absl::Duration operator-(SteadyTime time, SteadyTime earlier) {
    return time.since_start_ - earlier.since_start_;
  }
  friend bool operator<(SteadyTime a, SteadyTime b) { return a.since_start_ < b.since_start_; }

 private:
  explicit SteadyTime(absl::Duration since_start) : since_start_(since_start) {}

  absl::Duration since_start_;  // Of the clock.
};

}  // namespace gemmd
