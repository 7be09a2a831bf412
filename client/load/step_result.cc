// SPDX-License-Identifier: Apache-2.0
#include "client/load/step_result.h"

#include <algorithm>
#include <cmath>

namespace gemmd {

std::vector<LoadInterval> Thinned(const std::vector<LoadInterval>& intervals, size_t most) {
  const size_t group = (intervals.size() + most - 1) / most;
  if (group <= 1) return intervals;
  std::vector<LoadInterval> thinned;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const LoadInterval& next = intervals[i];
    if (i % group == 0) {
      thinned.push_back(next);
      continue;
    }
    LoadInterval& sum = thinned.back();
    sum.to_ns = next.to_ns;
    sum.in_flight = next.in_flight;
    sum.ok += next.ok;
    sum.failed += next.failed;
    sum.p50_ns = std::max(sum.p50_ns, next.p50_ns);
    sum.p99_ns = std::max(sum.p99_ns, next.p99_ns);
    sum.most_ns = std::max(sum.most_ns, next.most_ns);
  }
  return thinned;
}

void StepResult::Append(const StepResult& next) {
  const double both_s = window_s + next.window_s;
  const auto mean = [&](double a, double b) {
    return both_s > 0 ? (a * window_s + b * next.window_s) / both_s : 0;
  };
  rate = mean(rate, next.rate);
  offered = mean(offered, next.offered);
  client_cores = mean(client_cores, next.client_cores);
  usable_cores = next.usable_cores;
  // Answers that were only waited for come after the window.
  int64_t end_ns = std::llround(window_s * 1e9);
  if (!intervals.empty()) end_ns = std::max(end_ns, intervals.back().to_ns);
  for (LoadInterval interval : next.intervals) {
    interval.from_ns += end_ns;
    interval.to_ns += end_ns;
    intervals.push_back(interval);
  }
  tally.Merge(next.tally);
  window_s = both_s;
  unsent += next.unsent;
  sent_late += next.sent_late;
  most_in_flight = std::max(most_in_flight, next.most_in_flight);
  was_interrupted = was_interrupted || next.was_interrupted;
  first_messages.insert(next.first_messages.begin(), next.first_messages.end());
}

}  // namespace gemmd
