// SPDX-License-Identifier: Apache-2.0
//
// How an aborted launch ends before its last tile. Panels keep launches short
// (server/worker/run.h), except for a long k, because a sum is not divided. So blocks check the
// abort word every kTilesBetweenLooks tiles along k. An aborted launch leaves meaningless data in
// D.
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
