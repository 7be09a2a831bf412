// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with s8 and u8.
#pragma once

#include "kernels/cuda/tiles.h"

namespace gemmd {

template <>
struct GroupTiles<CudaGroup::kSparseInt8> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    if (!IsDeepestOnHopper(instruction)) return {};
    return instruction.saturates ? RowShapes(kSaturatingTiles) : RowShapes(kSparseTiles);
  }
};

}  // namespace gemmd
