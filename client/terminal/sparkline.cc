// SPDX-License-Identifier: Apache-2.0
#include "client/terminal/sparkline.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace gemmd {

std::string Sparkline(const std::deque<double>& values, size_t columns) {
  constexpr std::array<const char*, 9> kBars = {"_",      "\u2581", "\u2582", "\u2583", "\u2584",
                                                "\u2585", "\u2586", "\u2587", "\u2588"};
  const size_t first = values.size() > columns ? values.size() - columns : 0;
  double most = 0;
  for (size_t i = first; i < values.size(); ++i) most = std::max(most, values[i]);
  std::string line;
  for (size_t i = first; i < values.size(); ++i) {
    // Whatever is not 0 shows.
    const double bar = values[i] > 0 ? std::ceil(8 * values[i] / most) : 0;
    line += kBars[static_cast<size_t>(std::clamp(bar, 0.0, 8.0))];
  }
  return line;
}

}  // namespace gemmd
