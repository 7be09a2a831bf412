// SPDX-License-Identifier: Apache-2.0
//
// Smallest value and percentiles of a few measurements, each of them kept: the histograms of
// gemmload take any number and round to buckets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gemmd {

// The value at `fraction` (0 to 1) of `values` by nearest rank: the smallest value that at least
// that share of the values does not exceed. Every result is a measured value. 0 where there are
// none.
int64_t Percentile(std::vector<int64_t> values, double fraction);

struct Spread {
  int64_t least = 0;
  int64_t p50 = 0;
  int64_t p99 = 0;
};

Spread SpreadOf(std::vector<int64_t> values);

}  // namespace gemmd
