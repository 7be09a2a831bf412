// SPDX-License-Identifier: Apache-2.0
//
// The code in which the checks of sparse24.h (in this folder) record a bad group, and its meaning.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/sparse24.h"

namespace gemmd {

// The first bad group, counted along rows and then down, and what is wrong with it; kNoBadGroup if
// all groups are good.
using BadGroup = uint64_t;
inline constexpr BadGroup kNoBadGroup = ~uint64_t{0};

// `detail` has 8 bits and is never 0. For a dense group it is the number of nonzero units; for a
// compressed one, kIsIndices and the indices, or kIsBeyond and the place in the group of a nonzero
// element beyond the matrix.
constexpr BadGroup MakeBadGroup(int64_t position, uint32_t detail) {
  return static_cast<uint64_t>(position) << 8 | detail;
}
inline constexpr uint32_t kIsBeyond = 0x80;
inline constexpr uint32_t kIsIndices = 0x40;

// The refusals with which CheckPruned and CheckCompressed report a bad group.
absl::Status PrunedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad);
absl::Status CompressedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad);

}  // namespace gemmd
