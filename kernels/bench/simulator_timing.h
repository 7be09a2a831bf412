// SPDX-License-Identifier: Apache-2.0
//
// Times the simulator: one kernel of an instruction, one chip, one path.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/direct.h"
#include "kernels/kernel.h"
#include "kernels/sim/product.h"

namespace gemmd::bench {

struct SimulatorRun {
  std::string kernel;
  std::string chip;
  std::string path;  // "scalar", "avx2", "avx512".
  Shape shape;
  double median_seconds;
  double fastest_seconds;
  double multiplications;  // Done: of a sparse A half of m*n*k.
  int samples;
  std::string verdict;  // "ok", or what differs from the scalar path.
};

// The paths that the processor and the instruction have, by name; the fastest last.
std::vector<sim::Path> PathsOf(const Kernel& kernel, mma::Chip chip);
std::string_view NameOf(sim::Path path);

// Multiplies random normal numbers (integers: all values, a sparse A any legal half) for about
// `seconds`, and compares a few rows of the result with the scalar path, bit for bit. Threads as
// SetThreads says.
// Errors: FailedPrecondition where the chip lacks the instruction; ResourceExhausted for sizes.
absl::StatusOr<SimulatorRun> MeasureSimulator(const Kernel& kernel, mma::Chip chip, sim::Path path,
                                              const Shape& shape, double seconds);

std::string SimulatorTableHeader();
std::string SimulatorTableLine(const SimulatorRun& run);
std::string SimulatorJson(std::string_view processor, int threads,
                          const std::vector<SimulatorRun>& runs);

}  // namespace gemmd::bench
