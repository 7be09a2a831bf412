// SPDX-License-Identifier: Apache-2.0
//
// The refusals of a matrix that is not sparse, or not in the portable form, in the same words
// wherever the fault was found. All are InvalidArgument; see sparse24.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/sparse24.h"

namespace gemmd {

// The indices of a group's kept units. If only one unit is kept, both members hold its index.
struct KeptIndices {
  uint64_t first = 0;
  uint64_t last = 0;
};

// Refuses a group whose indices do not increase.
absl::Status RefuseIndices(std::string_view field, const SparseLayout& layout, int64_t row,
                           int64_t group, KeptIndices indices);

// Refuses a nonzero element that the last group of a row places at a column beyond the matrix.
absl::Status RefuseBeyond(std::string_view field, const SparseLayout& layout, int64_t row,
                          int64_t column);

// Refuses a group of a dense matrix with `count` nonzero units.
absl::Status RefuseNonzeros(std::string_view field, const SparseLayout& layout, int64_t row,
                            int64_t group, int count);

}  // namespace gemmd
