// SPDX-License-Identifier: Apache-2.0
//
// Promoted sums (kernels/promotion.h): warpgroup instructions have several tiles; warp instructions
// only the small one.
#pragma once

#include "kernels/cuda/tiles.h"

namespace gemmd {

// Warpgroups do not take turns: while one adds sums, the other must multiply. With turns, an H200
// reached 0.62 of the speed.
inline constexpr std::array<RowShape, 2> kPromotedTilesOf128 = {
    {{256, 128, 128, 8, 1, 4}, {128, 128, 128, 8, 1, 6}}};

template <>
struct GroupTiles<CudaGroup::kPromoted> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    const bool is_usual =
        instruction.a == ElementType::kE4m3 && instruction.b == ElementType::kE4m3;
    const bool has_tiles = instruction.is_warpgroup() && (is_usual || instruction.n <= 128);
    if (!has_tiles) return {};
    const bool is_dense_of_128 = instruction.n == 128 && !instruction.is_sparse();
    return is_dense_of_128 ? RowShapes(kPromotedTilesOf128) : PromotedTiles(instruction);
  }
};

}  // namespace gemmd
