// SPDX-License-Identifier: Apache-2.0
//
// Tiles of A as an instruction holds it: dense, or the kept elements of a sparse A with their
// places along k.
#pragma once

#include <cstdint>

#include "kernels/sim/product.h"
#include "kernels/sparse24.h"

namespace gemmd::sim {

// Borrows the product.
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

}  // namespace gemmd::sim
