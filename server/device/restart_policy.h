// SPDX-License-Identifier: Apache-2.0
//
// When a worker that ended is started again. After too many restarts in a short time it is not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

namespace gemmd {

class RestartPolicy {
 public:
  struct Limits {
    int restarts = 5;  // After this many within the window there is no other.
    int64_t window_ns = 60'000'000'000;
    int64_t first_pause_ns = 100'000'000;  // Before the second one; twice as long each time.
    int64_t longest_pause_ns = 5'000'000'000;
  };

  explicit RestartPolicy(const Limits& limits) : limits_(limits) {}

  // Counts a restart, and returns the pause before it; nothing where there must be none.
  std::optional<int64_t> NextPauseNs(int64_t now_ns) {
    while (!restarts_ns_.empty() && now_ns - restarts_ns_.front() >= limits_.window_ns) {
      restarts_ns_.pop_front();
    }
    const auto recent = static_cast<int>(restarts_ns_.size());
    if (recent >= limits_.restarts) return std::nullopt;
    restarts_ns_.push_back(now_ns);
    if (recent == 0) return 0;
    int64_t pause_ns = limits_.first_pause_ns;
    for (int i = 1; i < recent && pause_ns < limits_.longest_pause_ns; ++i) pause_ns *= 2;
    return std::min(pause_ns, limits_.longest_pause_ns);
  }

 private:
  const Limits limits_;
  std::deque<int64_t> restarts_ns_;
};

}  // namespace gemmd
