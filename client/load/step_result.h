// SPDX-License-Identifier: Apache-2.0
//
// What a step of a load found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/load/tally.h"

namespace gemmd {

// The calls that ended within one interval. A few figures, not their histogram: a run of a week has
// many intervals.
struct LoadInterval {
  int64_t from_ns = 0;  // Since the end of the warm-up, so negative within it.
  int64_t to_ns = 0;
  int64_t in_flight = 0;  // At the interval's end.
  int64_t ok = 0;
  int64_t failed = 0;
  int64_t p50_ns = 0;  // Latencies from the intended send; 0 where no call ended OK.
  int64_t p99_ns = 0;
  int64_t most_ns = 0;
};

// At most `most` intervals (at least one) in the place of neighbours: calls added up, and of the
// latencies the worst, so that no stall is lost.
std::vector<LoadInterval> Thinned(const std::vector<LoadInterval>& intervals, size_t most);

// The share of its cores beyond which the client is taken for the limit.
inline constexpr double kMostClientShare = 0.8;

struct StepResult {
  Tally tally;  // The calls due within the window.
  // From the end of the warm-up to the end of the duration; of a count, to the last answer.
  double window_s = 0;
  double rate = 0;        // Calls that ended OK within the window, per second.
  double offered = 0;     // Calls due per second of the time in which they were.
  int64_t unsent = 0;     // Calls due that the limit of calls in flight held to the window's end.
  int64_t sent_late = 0;  // Calls sent more than 1 ms after they could be.
  int64_t most_in_flight = 0;
  double client_cores = 0;  // Cores that this process kept busy within the window.
  double usable_cores = 0;  // Cores that it may use.
  bool was_interrupted = false;
  std::map<absl::StatusCode, std::string> first_messages = {};  // First message of each failure.
  std::vector<LoadInterval> intervals = {};                     // The window's.

  // Whether this process is too busy to say how fast the server is.
  bool IsClientBusy() const { return client_cores > kMostClientShare * usable_cores; }

  // Adds a run of the same load that came after this one.
  void Append(const StepResult& next);
};

}  // namespace gemmd
