// SPDX-License-Identifier: Apache-2.0
//
// Statistics of a list of times.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace gemmd::bench {

// The quantile at `share` (0 to 1), interpolated linearly. Precondition: there is a value.
double Quantile(std::vector<double> values, double share);

double Median(std::vector<double> values);

// The middle half's width over the median. 0.01: half of the samples lie within about 1 %.
double Spread(const std::vector<double>& values);

// The median of above[i] / below[i]: for times taken in turns, so that disturbances affect both.
// Both lists have the same length.
double MedianRatio(const std::vector<double>& above, const std::vector<double>& below);

// A library's time for a row's product, measured in turns with the row, on the CPU or a GPU.
struct LibraryTime {
  std::string how;     // How the library was called: "dnnl_sgemm", "best of 8".
  double seconds = 0;  // Median of one call.
  double ratio = 0;    // The row's speed over the library's: the median of all turns.

  friend bool operator==(const LibraryTime&, const LibraryTime&) = default;
};

// From the samples of the library and of the row, turn by turn.
inline LibraryTime LibraryTimeOf(std::string how, const std::vector<double>& library_seconds,
                                 const std::vector<double>& row_seconds) {
  return {.how = std::move(how),
          .seconds = Median(library_seconds),
          .ratio = MedianRatio(library_seconds, row_seconds)};
}

// The text of a cell.
inline std::string RatioText(const LibraryTime& library) {
  return absl::StrFormat("%.3f", library.ratio);
}

}  // namespace gemmd::bench
