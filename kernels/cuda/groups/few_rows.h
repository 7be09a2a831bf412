// SPDX-License-Identifier: Apache-2.0
//
// Tiles for few rows of A and for small matrices, whose warps hold whole tiles along k (HoldsTile).
// They have a multiprocessor for themselves, so they begin early (BeginsEarly). On an H200, with
// f16 and bf16, those of 16 rows were 1.02 to 1.13 times as fast as the narrow tiles of warpgroups
// (16 x 8192 x 8192, 16 x 4096 x 14336), and those of 32 rows 1.23 and 1.13 times as fast as larger
// ones (256 and 512 cubed).
#pragma once

#include <array>
#include <cstddef>

#include "kernels/cuda/tiles.h"

namespace gemmd {

inline constexpr std::array<RowShape, 4> kFewRowTiles = {{{32, 32, 128, 2, 2, 24},
                                                          {16, 64, 128, 1, 4, 10},
                                                          {16, 32, 128, 1, 2, 11},
                                                          {32, 64, 128, 2, 4, 16}}};

inline constexpr auto kDenseAndFewRowTiles = [] {
  std::array<RowShape, kDenseTiles.size() + kFewRowTiles.size()> tiles = {};
  for (size_t i = 0; i < tiles.size(); ++i) {
    tiles[i] = i < kDenseTiles.size() ? kDenseTiles[i] : kFewRowTiles[i - kDenseTiles.size()];
  }
  return tiles;
}();

}  // namespace gemmd
