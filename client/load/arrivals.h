// SPDX-License-Identifier: Apache-2.0
//
// When the calls of an open loop are due: fixed before the first is sent, whatever the server does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/matrix/splitmix.h"

namespace gemmd {

// Calls per second: `from` at the start, `to` after `ramp_ns` and from then on, a straight line
// between. Both positive.
struct RateCurve {
  double from = 0;
  double to = 0;
  int64_t ramp_ns = 0;

  // When as many calls as `calls` (a real number) are due.
  double TimeOfNs(double calls) const;
};

struct ArrivalPlan {
  RateCurve rate = {};
  bool is_poisson = false;  // Independent calls at that rate, else evenly spaced ones.
  uint64_t seed = 1;
  // If not empty: the gap before each call, over and over; the rate then counts for nothing.
  std::vector<int64_t> replay_gaps_ns = {};
};

// The times of calls since the start, in order, without end.
class Arrivals {
 public:
  // Precondition: a positive rate, or gaps of which one at least is positive.
  explicit Arrivals(ArrivalPlan plan) : plan_(std::move(plan)), random_(plan_.seed) {}

  int64_t NextNs();

 private:
  ArrivalPlan plan_;
  SplitMix random_;
  double calls_ = 0;  // Due so far; with Poisson arrivals the sum of exponential variates.
  size_t next_gap_ = 0;
  int64_t replay_ns_ = 0;
  bool is_first_ = true;
};

// Gaps from text, one a line: seconds, or a time such as 500us; # begins a comment.
// Errors: InvalidArgument naming the line, or where no gap is positive.
absl::StatusOr<std::vector<int64_t>> ParseGaps(absl::string_view text);

}  // namespace gemmd
