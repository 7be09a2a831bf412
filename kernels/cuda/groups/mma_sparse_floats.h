// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with f16, bf16, tf32, e4m3 and e5m2.
#pragma once

#include "kernels/cuda/tiles.h"

namespace gemmd {

template <>
struct GroupTiles<CudaGroup::kSparseFloats> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return IsDeepestOnHopper(instruction) ? RowShapes(kSparseTiles) : RowShapes();
  }
};

}  // namespace gemmd
