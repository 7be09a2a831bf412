// SPDX-License-Identifier: Apache-2.0
//
// Rows and columns of a matrix, taken out of it into one of their own without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/problem.h"

namespace gemmd::verify {

using Indices = absl::Span<const int64_t>;

struct GatheredMatrix {
  MatrixLayout layout;
  std::vector<std::byte> bytes;
};

// The rows of a matrix, dense or sparse, row by row, or the columns of a dense one, column by
// column. `matrix` is the first byte of it.
GatheredMatrix GatherRows(const MatrixLayout& layout, const std::byte* matrix, Indices rows);
GatheredMatrix GatherColumns(const MatrixLayout& layout, const std::byte* matrix, Indices columns);

// One element of a dense matrix.
uint64_t BitsAt(const MatrixLayout& layout, const std::byte* matrix, int64_t row, int64_t column);

// The elements of a packed vector, as they are.
std::vector<std::byte> GatherVector(ElementType type, const std::byte* vector, Indices indices);

}  // namespace gemmd::verify
