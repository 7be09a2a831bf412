// SPDX-License-Identifier: Apache-2.0
//
// What parts cost, from the times of wholes.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace gemmd {

template <size_t kParts>
struct TimedWork {
  std::array<double, kParts> parts;  // How many of each.
  double seconds;                    // More than 0.
};

// The costs, none below 0, with which the sums of all works come closest to their times: least
// squares of relative errors, by descent along one coordinate after the other.
template <size_t kParts>
std::array<double, kParts> FitCosts(const std::vector<TimedWork<kParts>>& works) {
  constexpr int kSweeps = 20000;
  // Sums over all works of products of two shares, and of shares.
  std::array<std::array<double, kParts>, kParts> products = {};
  std::array<double, kParts> sums = {};
  for (const TimedWork<kParts>& work : works) {
    for (size_t i = 0; i < kParts; ++i) {
      const double share = work.parts[i] / work.seconds;
      sums[i] += share;
      for (size_t j = 0; j < kParts; ++j) products[i][j] += share * work.parts[j] / work.seconds;
    }
  }
  std::array<double, kParts> costs = {};
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kParts; ++i) {
      double left = sums[i];
      for (size_t j = 0; j < kParts; ++j) {
        if (j != i) left -= products[i][j] * costs[j];
      }
      costs[i] = products[i][i] > 0 && left > 0 ? left / products[i][i] : 0;
    }
  }
  return costs;
}

}  // namespace gemmd
