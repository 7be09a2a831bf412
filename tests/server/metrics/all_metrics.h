// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "server/metrics/metric.h"

namespace gemmd {

inline std::vector<Metric> JoinedMetrics(const std::vector<absl::Span<const Metric>>& lists) {
  std::vector<Metric> all;
  for (const auto list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// The daemon's own metrics, and those under Triton's names.
inline std::vector<Metric> AllMetrics() {
  std::vector<absl::Span<const Metric>> lists = OwnMetrics();
  lists.push_back(TritonMetrics());
  return JoinedMetrics(lists);
}

}  // namespace gemmd
