// SPDX-License-Identifier: Apache-2.0
//
// Tiles of A as an instruction holds it: dense, or the kept elements of a sparse one with their
// places along k.
#pragma once

#include <cstdint>

#include "kernels/sim/product.h"
#include "kernels/sim/tiles.h"

namespace gemmd::sim {

// Borrows the product.
class ATiles {
 public:
  explicit ATiles(const Product2D& product);

  // The tile whose first element along k is `k`: as many rows as the instruction takes (all its
  // products), a_columns wide. `a_k` gets the logical k of each element, counted from `k`; it is
  // not written where A is dense.
  template <typename Word>
  void Load(int64_t row, int64_t k, Word* values, int* a_k) const;

 private:
  const Product2D& product_;
  const int rows_;
};

}  // namespace gemmd::sim
