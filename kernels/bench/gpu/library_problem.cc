// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/library_problem.h"

namespace gemmd::bench {

// Read as column major, the bytes of a row-major matrix are its transpose's. So for a row-major D,
// compute D^T = B^T A^T.
ColumnMajorProduct ColumnMajorProductOf(const Problem& problem) {
  const bool a_is_column_major = problem.a.order == Order::kColumnMajor;
  const bool b_is_column_major = problem.b.order == Order::kColumnMajor;
  if (problem.d.order == Order::kColumnMajor) {
    return {false, !a_is_column_major, !b_is_column_major};
  }
  return {true, b_is_column_major, a_is_column_major};
}

uint32_t AlignmentOf(const void* pointer) {
  uint32_t alignment = 256;
  while (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) alignment /= 2;
  return alignment;
}

}  // namespace gemmd::bench
