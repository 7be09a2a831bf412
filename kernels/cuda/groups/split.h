// SPDX-License-Identifier: Apache-2.0
//
// f32 by way of f16 (kernels/matrix/split_float.h). A stage has two parts of either operand, and a
// thread three times the sums of its tile: cross sums, those that are promoted, and their totals.
#pragma once

#include "kernels/cuda/tiles.h"

namespace gemmd {

inline constexpr std::array<RowShape, 1> kSplitTilesOf128 = {{{128, 128, 128, 8, 1, 3}}};
inline constexpr std::array<RowShape, 1> kSplitTilesOf64 = {{{128, 64, 128, 8, 1, 4}}};

template <>
struct GroupTiles<CudaGroup::kSplit> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    switch (instruction.n) {
      case 128: return kSplitTilesOf128;
      case 64: return kSplitTilesOf64;
      default: return {};
    }
  }
};

}  // namespace gemmd
