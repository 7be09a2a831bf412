// SPDX-License-Identifier: Apache-2.0
//
// Translates a problem to the vendors' libraries.
#pragma once

#include <cstdint>

#include "kernels/problem.h"

namespace gemmd::bench {

// A product for a library with column-major matrices: D from A and B, or D's transpose from their
// transposes in swapped order.
struct ColumnMajorProduct {
  bool is_swapped = false;  // B comes first, A second.
  bool transposes_first = false;
  bool transposes_second = false;

  friend bool operator==(const ColumnMajorProduct&, const ColumnMajorProduct&) = default;
};
ColumnMajorProduct ColumnMajorProductOf(const Problem& problem);

// The alignment of a pointer: a power of two, at most 256.
uint32_t AlignmentOf(const void* pointer);

}  // namespace gemmd::bench
