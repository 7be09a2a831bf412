// SPDX-License-Identifier: Apache-2.0
//
// The factors of blocks that one instruction takes: one for each row of A, or column of B, and each
// of the instruction's own blocks of k. A factor of the problem stands in for all of those that its
// block covers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sim/product.h"

namespace gemmd::sim {

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
