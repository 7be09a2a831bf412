// SPDX-License-Identifier: Apache-2.0
//
// Tiles of a problem's matrices as the raw bits of their elements, zero beyond the edges.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/problem.h"

namespace gemmd::sim {

// A rectangle of a matrix; it may reach beyond the matrix's edges.
struct Tile {
  int64_t row;
  int64_t column;
  int64_t rows;
  int64_t columns;
};

// Reads a tile of one matrix into `out`, row major without gaps. Word is uint32_t, or uint64_t for
// f64.
template <typename Word>
void LoadTile(const MatrixLayout& layout, const std::byte* data, const Tile& tile, Word* out);

}  // namespace gemmd::sim
