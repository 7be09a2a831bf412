// SPDX-License-Identifier: Apache-2.0
//
// Pruning: making a dense matrix one that sparse24.h can compress, by setting its smallest elements
// to +0.
//
// Elements are compared by magnitude; NaN counts as more than infinity. The magnitude of several
// elements together is the sum of theirs, in f64. Of equals, the one at the lower index is kept.
// What is kept keeps its bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/sparse24.h"

namespace gemmd {

// Keeps the largest units of every group along k.
//
// Returns how many nonzero elements became zero.
int64_t Prune(const SparseLayout& layout, std::byte* dense);

// Prunes so that the transposed matrix is sparse in the same form too, as training asks for: of
// every square tile of one group by one group, keeps as many units in each column of units as in
// each row, whichever of all such choices has the largest magnitude (90 of a tile of 2:4, 2 of one
// of 1:2). A unit here is unit x unit elements: 1, or 2 x 2 for the types kept by pairs. A tile at
// the edge counts as filled up with zeros. Of equals, the choice whose first row keeps the lower
// indices, then whose second does.
//
// Returns how many nonzero elements became zero.
int64_t PruneBothWays(const SparseLayout& layout, std::byte* dense);

}  // namespace gemmd
