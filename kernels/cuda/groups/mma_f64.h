// SPDX-License-Identifier: Apache-2.0
//
// mma with f64.
#pragma once

#include "kernels/cuda/tiles.h"

namespace gemmd {

template <>
struct GroupTiles<CudaGroup::kMmaF64> {
  static constexpr std::array<RowShape, 3> kTiles = {
      {{128, 128, 128, 4, 2, 4, 2}, {128, 64, 128, 4, 2, 4}, {64, 64, 128, 2, 2, 12}}};

  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return IsDeepestOnHopper(instruction) ? RowShapes(kTiles) : RowShapes();
  }
};

}  // namespace gemmd
