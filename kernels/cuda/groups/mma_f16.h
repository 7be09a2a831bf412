// SPDX-License-Identifier: Apache-2.0
//
// mma with f16 and bf16.
#pragma once

#include "kernels/cuda/groups/few_rows.h"

namespace gemmd {

template <>
struct GroupTiles<CudaGroup::kMmaF16> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return IsDeepestOnHopper(instruction) ? RowShapes(kDenseAndFewRowTiles) : RowShapes();
  }
};

}  // namespace gemmd
