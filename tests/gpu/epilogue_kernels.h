// SPDX-License-Identifier: Apache-2.0
//
// Kernels that only apply the epilogue, to accumulators in memory.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/cuda/epilogue.h"

struct CUstream_st;  // The type to which cudaStream_t points.

namespace gemmd {

// Apply the epilogue to `batch` matrices of m x n accumulators of the type, row major without gaps:
// through tiles in shared memory; or directly, where the parameters allow that.
absl::Status LaunchTileEpilogue(const EpilogueParameters& parameters, ElementType type,
                                const std::byte* accumulators, int64_t batch, CUstream_st* stream);
absl::Status LaunchDirectEpilogue(const EpilogueParameters& parameters, ElementType type,
                                  const std::byte* accumulators, int64_t batch,
                                  CUstream_st* stream);

}  // namespace gemmd
