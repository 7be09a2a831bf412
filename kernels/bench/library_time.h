// SPDX-License-Identifier: Apache-2.0
//
// What a library took for the product of a row, in turns with it: on the CPU and on a GPU.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/bench/statistics.h"

namespace gemmd::bench {

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
