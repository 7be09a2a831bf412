// SPDX-License-Identifier: Apache-2.0
//
// mma with b1.
#pragma once

#include "kernels/cuda/tiles.h"

namespace gemmd {

template <>
struct GroupTiles<CudaGroup::kMmaBits> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return IsDeepestOnHopper(instruction) ? RowShapes(kDenseTiles) : RowShapes();
  }
};

}  // namespace gemmd
