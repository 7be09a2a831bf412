// SPDX-License-Identifier: Apache-2.0
//
// Tiles of a problem's matrices as raw bits of elements, zero beyond the edges; and tiles of their
// block factors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/matrix/sparse24.h"
#include "kernels/problem.h"
#include "kernels/sim/product.h"

namespace gemmd::sim {

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Tiles of A as held by an instruction: dense, or the kept elements of a sparse A with their places
// along k. Borrows the product.
class ATiles {
 public:
  explicit ATiles(const Product2D& product);

  // Loads the tile whose first element along k is `k`: with the rows of all the instruction's
  // products, a_columns wide. For a sparse A, `a_k` gets the logical k of each element, counted
  // from `k`; otherwise it may be null.
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

// The block factors for one instruction: one per row of A, or column of B, and per block of k of
// the instruction. A factor of the problem is repeated for all of the instruction's blocks that it
// covers.
//
// Borrows the product, whose blocks fit the instruction (SupportsInstruction).
class FactorTiles {
 public:
  explicit FactorTiles(const Product2D& product);

  // Loads the factors of a tile. Factors beyond the edges are 1.
  void Load(int64_t row, int64_t column, int64_t k);

  // In the layout of OperandMatrices; empty if the product has none.
  std::span<const uint8_t> a() const { return a_; }
  std::span<const uint8_t> b() const { return b_; }

 private:
  uint8_t FactorOf(const BlockScale* blocks, const std::byte* factors, int64_t extent, int64_t line,
                   int64_t k) const;

  const Product2D& product_;
  std::vector<uint8_t> a_;
  std::vector<uint8_t> b_;
};

// The block factors for promoted sums (BlockScaling::kPromotions). Borrows the product.
class PromotionFactors {
 public:
  explicit PromotionFactors(const Product2D& product) : product_(product) {}

  bool are_used() const {
    return product_.instruction.scales == 0 && product_.problem.has_block_scales();
  }
  // The factor of a row of A or a column of B for the sum that begins at `k`; 1 beyond the edges.
  float OfRow(int64_t row, int64_t k) const;
  float OfColumn(int64_t column, int64_t k) const;

 private:
  const Product2D& product_;
};

}  // namespace gemmd::sim
