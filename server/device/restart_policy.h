// SPDX-License-Identifier: Apache-2.0
//
// When a worker that ended is started again. After too many restarts in a short time it rests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

namespace gemmd {

class RestartPolicy {
 public:
  struct Limits {
    int restarts = 5;  // After this many within the window there is a rest, and no history.
    int64_t window_ns = 60'000'000'000;
    int64_t rest_ns = 300'000'000'000;
    int64_t first_pause_ns = 100'000'000;  // Before the second one; twice as long each time.
    int64_t longest_pause_ns = 5'000'000'000;
  };

  explicit RestartPolicy(const Limits& limits) : limits_(limits) {}

  struct Pause {
    int64_t ns = 0;
    bool is_rest = false;
    friend bool operator==(const Pause&, const Pause&) = default;
  };

  // Counts a restart, and returns the pause before it.
  Pause Next(int64_t now_ns) {
    while (!restarts_ns_.empty() && now_ns - restarts_ns_.front() >= limits_.window_ns) {
      restarts_ns_.pop_front();
    }
    const auto recent = static_cast<int>(restarts_ns_.size());
    if (recent >= limits_.restarts) {
      Forget();
      return {.ns = limits_.rest_ns, .is_rest = true};
    }
    restarts_ns_.push_back(now_ns);
    if (recent == 0) return {};
    int64_t pause_ns = limits_.first_pause_ns;
    for (int i = 1; i < recent && pause_ns < limits_.longest_pause_ns; ++i) pause_ns *= 2;
    return {.ns = std::min(pause_ns, limits_.longest_pause_ns)};
  }

  // As if the worker had never ended.
  void Forget() { restarts_ns_.clear(); }

  int64_t rest_ns() const { return limits_.rest_ns; }

 private:
  const Limits limits_;
  std::deque<int64_t> restarts_ns_;
};

}  // namespace gemmd
