// SPDX-License-Identifier: Apache-2.0
#include "server/system/repeat_limit.h"

#include <algorithm>

#include "server/system/clock.h"

namespace gemmd {

bool RepeatLimit::Admit(std::string_view event, std::string_view reason, int64_t now_ns) {
  if (windows_.size() >= limits_.kinds) {
    std::erase_if(windows_, [&](const auto& kind) {
      return kind.second.end_ns <= now_ns && left_out(kind.second) <= 0;
    });
  }
  Kind kind(event, reason);
  if (windows_.size() >= limits_.kinds && !windows_.contains(kind)) kind.second.clear();
  Window& window = windows_[kind];
  // A window in which lines were left out goes on until TakeEnded has told of them.
  if (window.end_ns <= now_ns && left_out(window) <= 0) {
    window = {.end_ns = now_ns + limits_.window_ns, .lines = 0};
  }
  return ++window.lines <= limits_.lines;
}

std::vector<RepeatLimit::Suppressed> RepeatLimit::TakeEnded(int64_t now_ns) {
  std::vector<Suppressed> ended;
  for (auto& [kind, window] : windows_) {
    if (window.end_ns > now_ns || left_out(window) <= 0) continue;
    ended.push_back({.event = kind.first, .reason = kind.second, .lines = left_out(window)});
    window = {};
  }
  return ended;
}

int64_t RepeatLimit::next_end_ns() const {
  int64_t next_ns = kNoDeadlineNs;
  for (const auto& [kind, window] : windows_) {
    if (left_out(window) > 0) next_ns = std::min(next_ns, window.end_ns);
  }
  return next_ns;
}

}  // namespace gemmd
