// SPDX-License-Identifier: Apache-2.0
//
// The product of some rows of A and some columns of B. With any kernel, an element of D depends
// only on its row of A, its column of B and the epilogue's terms, so this product has the elements
// of the whole D where the rows and the columns cross. Of a batch, it has the same rows and columns
// of each matrix.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/matrix/element_gather.h"
#include "kernels/per_operand.h"
#include "kernels/problem.h"

namespace gemmd::verify {

using Indices = absl::Span<const int64_t>;

// Its problem: A, C and D are row major and B column major, without gaps.
// Errors: InvalidArgument beyond 2^63 bytes.
absl::StatusOr<Problem> SubProblemOf(const Problem& whole, int64_t rows, int64_t columns);

// Rows and columns, in memory of whatever gathers.
struct Crossing {
  const int64_t* rows = nullptr;
  const int64_t* columns = nullptr;
};

// The copies that make an operand of the sub-problem of an operand of the whole; a sparse A takes
// two. None if it is not read.
using Gathers = absl::InlinedVector<ElementGather, 2>;
Gathers GathersOf(const Problem& whole, const Problem& sub, OperandRole role,
                  const Crossing& crossing, const std::byte* from, std::byte* to);
// The elements of the whole D, in the layout of the sub-problem's.
ElementGather GatherOfD(const Problem& whole, const Problem& sub, const Crossing& crossing,
                        const std::byte* from, std::byte* to);

}  // namespace gemmd::verify
