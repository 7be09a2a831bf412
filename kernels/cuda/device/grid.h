// SPDX-License-Identifier: Apache-2.0
//
// Launches of kernels whose blocks stride over their work, so that any amount of it fits one grid.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/runtime.h"

namespace gemmd {

inline constexpr int kBlockThreads = 256;

// The number of blocks for `pieces`: enough to fill any current GPU several times. Block b takes
// pieces b, b + gridDim.x and so on.
inline unsigned BlocksFor(int64_t pieces) {
  constexpr int64_t kMaxBlocks = 16 * 256;
  return static_cast<unsigned>(std::clamp<int64_t>(pieces, 1, kMaxBlocks));
}

// The number of blocks for pieces that take one thread each.
inline unsigned BlocksOfThreads(int64_t pieces) {
  return BlocksFor(pieces / kBlockThreads + (pieces % kBlockThreads != 0 ? 1 : 0));
}

// The error of the last launch, if its arguments were refused.
inline absl::Status LaunchStatus(std::string_view what) {
  return CudaStatus(cudaGetLastError(), what);
}

}  // namespace gemmd
