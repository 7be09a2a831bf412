// SPDX-License-Identifier: Apache-2.0
//
// Elements of a matrix as those of another type, in another order or shape.
#pragma once

#include <cstdint>
#include <string>

#include "client/matrix/packed_matrix.h"

namespace gemmd {

// What became of values. Each value counts at most once.
struct ConversionCounts {
  int64_t rounded = 0;
  int64_t saturated = 0;  // Became the largest or least finite value of the type.
  int64_t infinite = 0;   // Were finite.
  int64_t nan = 0;        // Still are NaN.
  int64_t nan_lost = 0;   // Were NaN; the type has none.
};

// The bytes of `output`, whose own are not looked at: elements are counted row by row in matrix
// after matrix, whatever the orders. Those whose type stays keep their bits; others round to the
// nearest, ties to even.
// Precondition: both have as many elements, and the bytes of both do not leave 63 bits.
std::string ConvertElements(const PackedMatrix& input, const PackedMatrix& output,
                            ConversionCounts& counts);

}  // namespace gemmd
