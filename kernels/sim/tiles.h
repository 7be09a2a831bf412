// SPDX-License-Identifier: Apache-2.0
//
// Tiles of a problem's matrices as the raw bits of their elements, zero beyond the edges, and of
// their factors of blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/matrix/sparse24.h"
#include "kernels/problem.h"
#include "kernels/sim/product.h"

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

// Tiles of A as an instruction holds it: dense, or the kept elements of a sparse A with their
// places along k. Borrows the product.
class ATiles {
 public:
  explicit ATiles(const Product2D& product);

  // Loads the tile whose first element along k is `k`: as many rows as the instruction takes (all
  // its products), a_columns wide. For a sparse A, `a_k` gets the logical k of each element,
  // counted from `k`; otherwise it may be null.
  template <typename Word>
  void Load(int64_t row, int64_t k, Word* values, int* a_k) const;

 private:
  template <typename Word>
  void LoadGroup(int64_t row, int64_t group, Word* values, int* places) const;

  const Product2D& product_;
  const int rows_;
  const int columns_;
  SparseLayout sparse_;  // Only for a sparse A.
};

// The factors of blocks that one instruction takes: one for each row of A, or column of B, and each
// of the instruction's own blocks of k. A factor of the problem stands in for all of those that its
// block covers.
//
// Borrows the product, whose blocks fit the instruction (SupportsInstruction).
class FactorTiles {
 public:
  explicit FactorTiles(const Product2D& product);

  // Takes the factors of a tile. Those beyond the matrices' edges are one.
  void Load(int64_t row, int64_t column, int64_t k);

  // As OperandMatrices lays them out; empty where the product has none.
  std::span<const uint8_t> a() const { return a_; }
  std::span<const uint8_t> b() const { return b_; }

 private:
  uint8_t FactorOf(const BlockScale* blocks, const std::byte* factors, int64_t extent, int64_t line,
                   int64_t k) const;

  const Product2D& product_;
  std::vector<uint8_t> a_;
  std::vector<uint8_t> b_;
};

}  // namespace gemmd::sim
