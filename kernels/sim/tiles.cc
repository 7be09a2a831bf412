// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/tiles.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse_groups.h"

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

ATiles::ATiles(const Product2D& product)
    : product_(product),
      rows_(product.instruction.m * product.instruction.products()),
      columns_(product.instruction.a_columns()) {
  if (product.instruction.is_sparse()) {
    // The problem was validated before.
    sparse_ = *SparseLayoutOf("a", product.problem.a.type, product.problem.m, product.problem.k);
  }
}

// Loads the kept elements of one group; for a group beyond the matrix, zeros in the first places.
template <typename Word>
void ATiles::LoadGroup(int64_t row, int64_t group, Word* values, int* places) const {
  const SparseForm& form = sparse_.form;
  const bool is_inside = row < sparse_.rows && group < sparse_.groups;
  for (int64_t unit = 0; unit < form.kept_units(); ++unit) {
    int64_t index = unit;
    if (is_inside) {
      index = LoadIndex(product_.a + sparse_.indices_offset(row), group * form.kept_units() + unit);
    }
    for (int64_t i = 0; i < form.unit; ++i) {
      const int64_t kept = unit * form.unit + i;
      places[kept] = static_cast<int>(index * form.unit + i);
      values[kept] = 0;
      if (!is_inside) continue;
      values[kept] =
          static_cast<Word>(LoadBits(sparse_.type, product_.a + sparse_.values_offset(row),
                                     group * form.kept_units() * form.unit + kept));
    }
  }
}

template <typename Word>
void ATiles::Load(int64_t row, int64_t k, Word* values, int* a_k) const {
  if (!product_.instruction.is_sparse()) {
    LoadTile(product_.problem.a, product_.a, {row, k, rows_, columns_}, values);
    return;
  }
  const int64_t size = sparse_.form.group();
  const int64_t kept = size / 2;
  for (int64_t i = 0; i < rows_; ++i) {
    for (int64_t j = 0; j < columns_ / kept; ++j) {
      const int64_t at = i * columns_ + j * kept;
      LoadGroup(row + i, k / size + j, values + at, a_k + at);
      for (int64_t e = 0; e < kept; ++e) a_k[at + e] += static_cast<int>(j * size);
    }
  }
}

template void ATiles::Load(int64_t, int64_t, uint32_t*, int*) const;
template void ATiles::Load(int64_t, int64_t, uint64_t*, int*) const;

FactorTiles::FactorTiles(const Product2D& product) : product_(product) {
  if (!product.problem.has_block_scales()) return;
  const mma::Instruction& instruction = product.instruction;
  a_.resize(static_cast<size_t>(instruction.m * instruction.scales));
  b_.resize(static_cast<size_t>(instruction.n * instruction.scales));
}

uint8_t FactorTiles::FactorOf(const BlockScale* blocks, const std::byte* factors, int64_t extent,
                              int64_t line, int64_t k) const {
  const bool is_inside = line < extent && k < product_.problem.k;
  if (blocks == nullptr || !is_inside) return mma::OneOf(product_.instruction.scale);
  return std::to_integer<uint8_t>(factors[blocks->offset(line, k, product_.problem.k)]);
}

void FactorTiles::Load(int64_t row, int64_t column, int64_t k) {
  if (a_.empty()) return;
  const Problem& problem = product_.problem;
  const mma::Instruction& instruction = product_.instruction;
  for (int block = 0; block < instruction.scales; ++block) {
    const int64_t depth = k + int64_t{block} * instruction.scale_block();
    for (int i = 0; i < instruction.m; ++i) {
      a_[static_cast<size_t>(i * instruction.scales + block)] =
          FactorOf(problem.blocks_of_a(), product_.a_factors, problem.m, row + i, depth);
    }
    for (int j = 0; j < instruction.n; ++j) {
      b_[static_cast<size_t>(block * instruction.n + j)] =
          FactorOf(problem.blocks_of_b(), product_.b_factors, problem.n, column + j, depth);
    }
  }
}

namespace {

float FactorOfSum(const BlockScale* blocks, const std::byte* factors, int64_t extent, int64_t line,
                  int64_t at, int64_t k) {
  if (blocks == nullptr || line >= extent) return 1;
  return DecodeFactor(blocks->type, factors + blocks->offset(line, at, k));
}

}  // namespace

float PromotionFactors::OfRow(int64_t row, int64_t k) const {
  const Problem& problem = product_.problem;
  return FactorOfSum(problem.blocks_of_a(), product_.a_factors, problem.m, row, k, problem.k);
}

float PromotionFactors::OfColumn(int64_t column, int64_t k) const {
  const Problem& problem = product_.problem;
  return FactorOfSum(problem.blocks_of_b(), product_.b_factors, problem.n, column, k, problem.k);
}

}  // namespace gemmd::sim
