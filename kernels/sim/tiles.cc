// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/tiles.h"

#include <algorithm>
#include <cstring>

#include "kernels/element.h"

namespace gemmd::sim {
namespace {

// Loads `count` elements of a line, starting with `first`, into words that are `stride` apart.
template <typename Stored, typename Word>
void LoadWhole(const std::byte* line, int64_t first, int64_t count, int64_t stride, Word* out) {
  for (int64_t i = 0; i < count; ++i) {
    Stored bits;
    std::memcpy(&bits, line + (first + i) * static_cast<int64_t>(sizeof(Stored)), sizeof(bits));
    out[i * stride] = static_cast<Word>(bits);
  }
}

template <typename Word>
void LoadLine(ElementType type, const std::byte* line, int64_t first, int64_t count, int64_t stride,
              Word* out) {
  switch (BitsOf(type)) {
    case 8: LoadWhole<uint8_t>(line, first, count, stride, out); break;
    case 16: LoadWhole<uint16_t>(line, first, count, stride, out); break;
    case 32: LoadWhole<uint32_t>(line, first, count, stride, out); break;
    case 64: LoadWhole<uint64_t>(line, first, count, stride, out); break;
    default:
      for (int64_t i = 0; i < count; ++i) {
        out[i * stride] = static_cast<Word>(LoadBits(type, line, first + i));
      }
  }
}

}  // namespace

template <typename Word>
void LoadTile(const MatrixLayout& layout, const std::byte* data, const Tile& tile, Word* out) {
  const int64_t rows = std::clamp<int64_t>(layout.rows - tile.row, 0, tile.rows);
  const int64_t columns = std::clamp<int64_t>(layout.columns - tile.column, 0, tile.columns);
  if (rows < tile.rows || columns < tile.columns) {
    std::fill_n(out, tile.rows * tile.columns, Word{0});
  }
  const int64_t line_bytes = layout.line_stride_bytes();
  if (layout.order == Order::kRowMajor) {
    for (int64_t i = 0; i < rows; ++i) {
      LoadLine(layout.type, data + (tile.row + i) * line_bytes, tile.column, columns, 1,
               out + i * tile.columns);
    }
  } else {
    for (int64_t j = 0; j < columns; ++j) {
      LoadLine(layout.type, data + (tile.column + j) * line_bytes, tile.row, rows, tile.columns,
               out + j);
    }
  }
}

template void LoadTile(const MatrixLayout&, const std::byte*, const Tile&, uint32_t*);
template void LoadTile(const MatrixLayout&, const std::byte*, const Tile&, uint64_t*);

}  // namespace gemmd::sim
