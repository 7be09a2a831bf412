// SPDX-License-Identifier: Apache-2.0
//
// How long a launch on the processor should take, from what was measured of this host.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/host_costs.h"
#include "kernels/problem.h"

namespace gemmd {

// A launch as it is planned.
struct CpuWork {
  const Problem& problem;
  std::string_view engine;
  bool is_swapped;  // The engine computes B^T A^T.
  // Y holds u8 values less 128; libraries then have no way of its own for one line.
  bool is_biased;
  int64_t depth;                         // k as the engine gets it.
  std::optional<ElementType> a_widened;  // Into what; absent where it is taken in place.
  std::optional<ElementType> b_widened;
  bool is_finished;     // The epilogue runs.
  ElementType stored;   // The accumulators' type in memory.
  ElementType type;     // The type that they represent.
  bool is_independent;  // Matrices of the batch need no workspace.
};

// Adds what the launch does to each matrix of the batch: making A dense, widening, multiplying,
// finishing. Threads share one matrix or the batch, as kernels/cpu/launch.cc does. Absent where the
// engine was not measured.
std::optional<double> PredictedSeconds(const CpuWork& work, const HostCosts& costs);

}  // namespace gemmd
