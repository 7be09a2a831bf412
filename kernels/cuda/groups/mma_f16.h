// SPDX-License-Identifier: Apache-2.0
//
// mma with f16 and bf16. Beyond the usual tiles, there are some for few rows of A and for small
// matrices, whose warps hold whole tiles along k (HoldsTile). On an H200 those of 16 rows were 1.02
// to 1.13 times as fast as the narrow tiles of warpgroups (16 x 8192 x 8192, 16 x 4096 x 14336),
// those of 32 rows 1.23 and 1.13 times as fast as larger ones (256 and 512 cubed): they have a
// multiprocessor for themselves, so they begin early (BeginsEarly).
#pragma once

#include <array>

#include "kernels/cuda/tiles.h"

namespace gemmd {

inline constexpr std::array<RowShape, 10> kTilesOf16Bits = {{kDenseTiles[0],
                                                             kDenseTiles[1],
                                                             kDenseTiles[2],
                                                             kDenseTiles[3],
                                                             kDenseTiles[4],
                                                             kDenseTiles[5],
                                                             {32, 32, 128, 2, 2, 24},
                                                             {16, 64, 128, 1, 4, 10},
                                                             {16, 32, 128, 1, 2, 11},
                                                             {32, 64, 128, 2, 4, 16}}};

template <>
struct GroupTiles<CudaGroup::kMmaF16> {
  static constexpr RowShapes Of(const mma::Instruction& instruction) {
    return IsDeepestOnHopper(instruction) ? RowShapes(kTilesOf16Bits) : RowShapes();
  }
};

}  // namespace gemmd
