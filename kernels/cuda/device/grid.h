// SPDX-License-Identifier: Apache-2.0
//
// Launches of kernels whose blocks share their work by striding over it: any amount fits one grid.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/runtime.h"

namespace gemmd {

inline constexpr int kBlockThreads = 256;

// Enough blocks to fill any GPU of today several times over; each takes every so-manieth piece.
inline unsigned BlocksFor(int64_t pieces) {
  constexpr int64_t kMostBlocks = 16 * 256;
  return static_cast<unsigned>(std::clamp<int64_t>(pieces, 1, kMostBlocks));
}

// Blocks for pieces of one thread each.
inline unsigned BlocksOfThreads(int64_t pieces) {
  return BlocksFor(pieces / kBlockThreads + (pieces % kBlockThreads != 0 ? 1 : 0));
}

// What the launch before it made of the arguments.
inline absl::Status LaunchStatus(std::string_view what) {
  return CudaStatus(cudaGetLastError(), what);
}

}  // namespace gemmd
