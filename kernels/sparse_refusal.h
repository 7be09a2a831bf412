// SPDX-License-Identifier: Apache-2.0
//
// The words in which a matrix that is not sparse, or not in the portable form, is refused: the same
// wherever it was found out. All are InvalidArgument; see sparse24.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/sparse24.h"

namespace gemmd {

// Of the kept units of a group; where one is kept, both are it.
struct KeptIndices {
  uint64_t first = 0;
  uint64_t last = 0;
};

// A group of indices that do not increase.
absl::Status RefuseIndices(std::string_view field, const SparseLayout& layout, int64_t row,
                           int64_t group, KeptIndices indices);

// A nonzero element that the last group of a row places at a column beyond the matrix.
absl::Status RefuseBeyond(std::string_view field, const SparseLayout& layout, int64_t row,
                          int64_t column);

// A group of a dense matrix with `count` nonzero units.
absl::Status RefuseNonzeros(std::string_view field, const SparseLayout& layout, int64_t row,
                            int64_t group, int count);

}  // namespace gemmd
