// SPDX-License-Identifier: Apache-2.0
//
// The search for the highest rate that a server keeps up with under a latency objective.
//
// One window says little: a stall of the machine makes a good rate fail. So no rate is given up
// after one window; the search keeps a belief about the highest rate (rate_belief.h), tries the
// rate in its middle next, and ends when the belief is narrow and a rate above it was seen to fail
// and one below it to hold after that.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/load/window_verdict.h"

namespace gemmd {

struct SloPlan {
  double first_rate = 100;
  double last_rate = 10e6;  // No rate above is tried.
  double width = 1.18;      // The search ends where the ends of the interval are this close.
  int most_windows = 60;
  double width_at_last = 1.25;  // In the last of them, the interval may be so wide.
  double window_s = 10.0 / 3;

  // So long that enough calls are due, whatever the arrivals.
  double WindowAt(double rate, const SloObjective& objective) const;
};

inline constexpr double kSloConfidence = 0.95;

struct SloAnswer {
  enum class End {
    kFound,
    kEveryRate,    // Even the last rate holds.
    kNoRate,       // Not even one call a second holds, or the rate to begin with where it is less.
    kHopeless,     // A window was.
    kClientLimit,  // Above `rate` the client is the limit.
    kTooNoisy,     // The windows contradict each other so much that the interval stays wide.
    kInterrupted,
  };
  End end = End::kInterrupted;
  // Where one was found: at which an undisturbed window holds as often as not. Otherwise the
  // highest at which windows held at least as often as they failed; 0 where none did.
  double rate = 0;
  // The highest rate lies between these with the probability kSloConfidence; both 0 where nothing
  // is known.
  double low = 0;
  double high = 0;
  std::vector<SloWindow> windows = {};  // In order.

  bool is_conclusive() const {
    return end != End::kClientLimit && end != End::kTooNoisy && end != End::kInterrupted;
  }
  int64_t discarded() const;
};

// Tries rates until the search ends, or until a window says to stop (nullopt).
SloAnswer SearchRate(const SloPlan& plan,
                     const std::function<std::optional<SloWindow>(double rate)>& try_rate);

// The search in words, for the report.
std::string SloRule(const SloObjective& objective, const SloPlan& plan);

}  // namespace gemmd
