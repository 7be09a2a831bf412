// SPDX-License-Identifier: Apache-2.0
//
// How a launch that nobody wants any more ends before its last tile. Panels keep launches short
// (server/worker/run.h), but for a long k: a sum is not divided. So blocks look at the
// word of the abort at every so many tiles along k. What an aborted launch leaves in D means
// nothing.
#pragma once

#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/cuda/device/ptx/ptx.cuh"
#include "kernels/cuda/geometry.h"

namespace gemmd {

__device__ inline bool IsLook(int tile) { return tile > 0 && tile % kTilesBetweenLooks == 0; }

__device__ inline bool IsAborted(const AbortWord& abort) {
  return abort.word != nullptr && ptx::LoadOfSystem(abort.word) == abort.value;
}

}  // namespace gemmd
