// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/statistics.h"

#include <algorithm>
#include <cstddef>

namespace gemmd::bench {

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = place - static_cast<double>(below);
  return values[below] + part * (values[above] - values[below]);
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

double Spread(const std::vector<double>& values) {
  return (Quantile(values, 0.75) - Quantile(values, 0.25)) / Median(values);
}

double MedianRatio(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (size_t turn = 0; turn < above.size(); ++turn) ratios.push_back(above[turn] / below[turn]);
  return Median(std::move(ratios));
}

}  // namespace gemmd::bench
