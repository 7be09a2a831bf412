// SPDX-License-Identifier: Apache-2.0
//
// mma with s8 and u8.
#pragma once

#include "kernels/cuda/groups/few_rows.h"

namespace gemmd {

template <>
struct GroupTiles<CudaGroup::kMmaInt8> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    if (!IsDeepestOnHopper(instruction)) return {};
    return instruction.saturates ? RowShapes(kSaturatingTiles) : RowShapes(kDenseAndFewRowTiles);
  }
};

}  // namespace gemmd
