// SPDX-License-Identifier: Apache-2.0
//
// How the vendors' libraries are asked for a problem.
#pragma once

#include <cstdint>

#include "kernels/problem.h"

namespace gemmd::bench {

// How a library to which all matrices are column major is asked for a product: for D or its
// transpose, from A and B or from theirs in the other order.
struct ColumnMajorProduct {
  bool is_swapped = false;  // B comes first, A second.
  bool transposes_first = false;
  bool transposes_second = false;

  friend bool operator==(const ColumnMajorProduct&, const ColumnMajorProduct&) = default;
};
ColumnMajorProduct ColumnMajorProductOf(const Problem& problem);

// The largest power of two, 256 at most, that a pointer is a multiple of.
uint32_t AlignmentOf(const void* pointer);

}  // namespace gemmd::bench
