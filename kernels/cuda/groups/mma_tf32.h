// SPDX-License-Identifier: Apache-2.0
//
// mma with tf32.
#pragma once

#include "kernels/cuda/groups/few_rows.h"

namespace gemmd {

template <>
struct GroupTiles<CudaGroup::kMmaTf32> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return IsDeepestOnHopper(instruction) ? RowShapes(kDenseAndFewRowTiles) : RowShapes();
  }
};

}  // namespace gemmd
