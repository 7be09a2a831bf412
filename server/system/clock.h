// SPDX-License-Identifier: Apache-2.0
//
// Monotonic time, behind an interface so that tests can stop it.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace gemmd {

// A deadline that never comes.
inline constexpr int64_t kNoDeadlineNs = std::numeric_limits<int64_t>::max();

class Clock {
 public:
  virtual ~Clock() = default;

  // Nanoseconds since an arbitrary start; never goes back. Threads: any.
  virtual int64_t NowNs() const = 0;
};

class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace gemmd
