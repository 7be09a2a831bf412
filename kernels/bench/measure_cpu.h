// SPDX-License-Identifier: Apache-2.0
//
// Times a CPU row of the catalogue and its library in turns, on the same kind of data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/problem.h"
#include "kernels/bench/report.h"
#include "kernels/bench/statistics.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

struct CpuSettings {
  Order b_order = Order::kRowMajor;
  double seconds = 1;   // For each row and shape, warm-up not counted.
  int min_samples = 5;  // For each contender, regardless of the time.
};

struct CpuMeasurement {
  std::string kernel;
  Shape shape;
  double seconds;                      // Median of one call.
  std::optional<LibraryTime> library;  // The fastest direct call; absent if there is none.
  int samples;
  std::string verdict;  // "ok", or the first element that is wrong.
};

// Errors: those of Kernel::supports, workspace_bytes and launch.
absl::StatusOr<CpuMeasurement> MeasureOnCpu(const Kernel& kernel, const Shape& shape,
                                            const CpuSettings& settings);

std::vector<Column> CpuColumns();
Entry EntryOf(const CpuMeasurement& measurement);

}  // namespace gemmd::bench
