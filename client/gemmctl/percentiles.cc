// SPDX-License-Identifier: Apache-2.0
#include "client/gemmctl/percentiles.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gemmd {

int64_t Percentile(std::vector<int64_t> values, double fraction) {
  if (values.empty()) return 0;
  const double rank = std::ceil(fraction * static_cast<double>(values.size()));
  const size_t index =
      static_cast<size_t>(std::clamp(rank - 1, 0.0, static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

Spread SpreadOf(std::vector<int64_t> values) {
  return {Percentile(values, 0), Percentile(values, 0.5), Percentile(std::move(values), 0.99)};
}

}  // namespace gemmd
