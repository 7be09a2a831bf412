// SPDX-License-Identifier: Apache-2.0
//
// The search for the highest rate that a server keeps up with under a latency objective.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/load/step_result.h"
#include "client/load/verifier.h"

namespace gemmd {

// At most `limit_ns` at `fraction` of the latencies from the intended send.
struct SloObjective {
  double fraction = 0;
  int64_t limit_ns = 0;
  std::string text;  // "p99=2ms"
};

// Errors: InvalidArgument for anything but a percentile and a time.
absl::StatusOr<SloObjective> ParseSlo(absl::string_view text);

// Calls without which the percentile would only be the longest of them.
int64_t LeastCalls(const SloObjective& objective);

struct SloPlan {
  double first_rate = 100;
  double last_rate = 10e6;   // No rate above is tried.
  double resolution = 1.05;  // The search ends where a rate that holds and one that does not are
                             // this close.
  int windows = 3;           // In each trial.
  double window_s = 10.0 / 3;

  // So long that enough calls are due, whatever the arrivals.
  double WindowAt(double rate, const SloObjective& objective) const;
};

struct SloTrial {
  double rate = 0;
  bool holds = false;
  bool is_last = false;   // No other rate would change anything.
  std::string what = {};  // Why not, or how well.
};

// Says why a window breaks the rule; empty where it does not.
std::string WhyWindowFails(const SloObjective& objective, const StepResult& window,
                           const VerifierCounts& verified);

// The rule in words, for the report.
std::string SloRule(const SloObjective& objective, const SloPlan& plan);

// Tries rates until the search ends, or until a trial says to stop (nullopt). The trials in order;
// the highest rate that held is the answer.
std::vector<SloTrial> SearchRate(
    const SloPlan& plan, const std::function<std::optional<SloTrial>(double rate)>& try_rate);
double HighestThatHolds(const std::vector<SloTrial>& trials);  // 0: none.

}  // namespace gemmd
