// SPDX-License-Identifier: Apache-2.0
//
// What the checks of sparse24.h (of this folder) write, and what it means.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/sparse24.h"

namespace gemmd {

// The first bad group, counted along rows and then down, and what is wrong with it; kNoBadGroup
// where all are good.
using BadGroup = uint64_t;
inline constexpr BadGroup kNoBadGroup = ~uint64_t{0};

// `detail` has 8 bits: of a dense group how many units are not zero; of a compressed one its
// indices, or kIsBeyond and the place in the group of a nonzero element beyond the matrix. Never 0.
constexpr BadGroup MakeBadGroup(int64_t position, uint32_t detail) {
  return static_cast<uint64_t>(position) << 8 | detail;
}
inline constexpr uint32_t kIsBeyond = 0x80;
inline constexpr uint32_t kIsIndices = 0x40;

// What CheckPruned and CheckCompressed say of it.
absl::Status PrunedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad);
absl::Status CompressedRefusal(std::string_view field, const SparseLayout& layout, BadGroup bad);

}  // namespace gemmd
