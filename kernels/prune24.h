// SPDX-License-Identifier: Apache-2.0
//
// Pruning sets the smallest elements of a dense matrix to +0, so that sparse24.h can compress it.
//
// Elements are compared by magnitude; NaN is larger than infinity. The magnitude of several
// elements is the sum of theirs, in f64. Among equals, the one at the lower index is kept. Kept
// elements keep their bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/sparse24.h"

namespace gemmd {

// Keeps the largest units of every group along k.
//
// Returns how many nonzero elements became zero.
int64_t Prune(const SparseLayout& layout, std::byte* dense);

// Prunes so that the transposed matrix is sparse in the same form too, as training needs. Every
// square tile of one group by one group keeps as many units in each column of units as in each row;
// the choice with the largest magnitude is taken (of 90 for a tile of 2:4, of 2 for one of 1:2). A
// unit here is unit x unit elements: 1, or 2 x 2 for the types kept by pairs. A tile at the edge
// counts as filled up with zeros. Among equals, the choice whose first row keeps the lower indices
// is taken, then the one whose second row does.
//
// Returns how many nonzero elements became zero.
int64_t PruneBothWays(const SparseLayout& layout, std::byte* dense);

}  // namespace gemmd
