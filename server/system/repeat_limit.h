// SPDX-License-Identifier: Apache-2.0
//
// How often a line that repeats is logged: the first few in each second, then how many there were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gemmd {

// Lines are the same where event and reason are. Not safe for threads.
class RepeatLimit {
 public:
  struct Limits {
    int64_t lines = 10;  // In each window.
    int64_t window_ns = 1'000'000'000;
    // How many kinds of lines are told apart; beyond, all of one event count as one.
    size_t kinds = 256;
  };
  struct Suppressed {
    std::string event;
    std::string reason;
    int64_t lines = 0;
  };

  RepeatLimit() = default;
  explicit RepeatLimit(const Limits& limits) : limits_(limits) {}

  // Whether a line of that kind is to be written now.
  bool Admit(std::string_view event, std::string_view reason, int64_t now_ns);

  // What was left out in windows that have ended; each window once.
  std::vector<Suppressed> TakeEnded(int64_t now_ns);

  // When TakeEnded next has something; kNoDeadlineNs where nothing was left out.
  int64_t next_end_ns() const;

 private:
  struct Window {
    int64_t end_ns = 0;
    int64_t lines = 0;  // Those left out included.
  };
  using Kind = std::pair<std::string, std::string>;

  int64_t left_out(const Window& window) const { return window.lines - limits_.lines; }

  const Limits limits_ = {};
  std::map<Kind, Window> windows_;
};

}  // namespace gemmd
