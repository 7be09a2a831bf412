// SPDX-License-Identifier: Apache-2.0
//
// What a mask (mask24.h) says of one group; for the host and for the threads of a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/sparse_groups.h"

namespace gemmd {

struct MarkedGroup {
  uint64_t elements = 0;  // All bits of each marked element of the group.
  int units = 0;          // That have a marked element.
};

// A group has 2, 4 or 8 elements, so its marks lie in one byte of the mask's line.
template <typename Form>
constexpr MarkedGroup MarkedGroupOf(const SparseLayout& layout, const std::byte* mask_line,
                                    int64_t group) {
  const int unit = static_cast<int>(layout.form.unit);
  const int bits = Form::kUnitBits / unit;
  const int64_t first = group * layout.form.group();
  const int64_t left = layout.columns - first;
  const int count = static_cast<int>(left < layout.form.group() ? left : layout.form.group());
  const uint32_t marks = std::to_integer<uint32_t>(mask_line[first / 8]) >> first % 8;
  MarkedGroup marked;
  uint32_t units = 0;
  for (int i = 0; i < count; ++i) {
    if ((marks >> i & 1) == 0) continue;
    marked.elements |= LowMask(bits) << i * bits;
    units |= uint32_t{1} << i / unit;
  }
  marked.units = CountOf(units);
  return marked;
}

}  // namespace gemmd
