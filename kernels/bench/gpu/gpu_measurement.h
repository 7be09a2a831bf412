// SPDX-License-Identifier: Apache-2.0
//
// A measurement of a row on a GPU, and its report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/bench/gpu/alone.h"
#include "kernels/bench/problem.h"
#include "kernels/bench/report.h"
#include "kernels/bench/statistics.h"

namespace gemmd::bench {

struct GpuMeasurement {
  std::string kernel;
  std::string instruction;
  std::string types;  // Those of the problem: "e4m3 x e4m3 into f32".
  Shape shape = {};
  std::string orders;
  int64_t leading_dimension_offset = 0;
  std::string output;  // What was asked of D: "bf16 bias relu", or nothing.
  bool is_integer = false;
  bool is_sparse = false;  // If true, operations are counted as if A were dense.
  bool has_default_recipe =
      false;  // Whether a request without a kernel name may get the row's bits.

  int64_t elements = 0;  // Elements of D.
  int64_t compared = 0;  // Elements compared with the simulator, bit for bit.
  int64_t mismatches = 0;
  std::string problem;  // Empty, or what is wrong.

  double seconds = 0;                    // Median of a whole launch.
  double spread = 0;                     // The middle half's width over the median.
  std::optional<double> kernel_seconds;  // Without packing; absent if nothing is packed.
  int samples = 0;
  int operand_sets = 0;
  int sm_clock_mhz = 0;           // Median while it ran.
  std::optional<double> ceiling;  // Max operations per second of the instruction.
  std::optional<LibraryTime> cublaslt;
  std::optional<LibraryTime> cusparselt;
  // Measured alone on the device, if requested: the row, and the library.
  std::optional<AloneTime> alone;
  std::optional<AloneTime> library_alone;

  std::optional<double> host_seconds;  // Median host time of a launch.

  bool is_right() const { return mismatches == 0 && problem.empty(); }
  double rate() const { return shape.operations() / seconds; }

  friend bool operator==(const GpuMeasurement&, const GpuMeasurement&) = default;
};

std::vector<Column> GpuColumns();
Entry EntryOf(const GpuMeasurement& measurement);

}  // namespace gemmd::bench
