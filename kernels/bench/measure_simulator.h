// SPDX-License-Identifier: Apache-2.0
//
// Times the simulator: one kernel of an instruction, one chip, one path.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/problem.h"
#include "kernels/bench/report.h"
#include "kernels/kernel.h"
#include "kernels/sim/product.h"

namespace gemmd::bench {

struct SimulatorSettings {
  Order b_order = Order::kRowMajor;
  double seconds = 1;  // For each kernel, path and shape, about.
};

struct SimulatorMeasurement {
  std::string kernel;
  std::string chip;
  std::string path;  // "scalar", "avx2", "avx512".
  Shape shape;
  double median_seconds;
  double fastest_seconds;
  double multiplications;  // Multiplications done: half of m*n*k for a sparse A.
  int samples;
  std::string verdict;  // "ok", or what differs from the scalar path.
};

// The paths that the processor and the instruction support; the fastest last.
std::vector<sim::Path> PathsOf(const Kernel& kernel, mma::Chip chip);
std::string_view NameOf(sim::Path path);

// Multiplies, and compares a few rows of the result with the scalar path, bit for bit. Uses the
// threads set by SetThreads. Errors: FailedPrecondition if the chip lacks the instruction; those of
// MakeProblem.
absl::StatusOr<SimulatorMeasurement> MeasureOnSimulator(const Kernel& kernel, mma::Chip chip,
                                                        sim::Path path, const Shape& shape,
                                                        const SimulatorSettings& settings);

std::vector<Column> SimulatorColumns();
Entry EntryOf(const SimulatorMeasurement& measurement);

}  // namespace gemmd::bench
