// SPDX-License-Identifier: Apache-2.0
//
// Views of matrices in the wire's packed format, and conversion to other types, orders and shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/matrix/npy.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// A batch of matrices in packed lines without gaps. Borrows the bytes.
struct PackedMatrix {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t columns = 0;
  v1::Order order = v1::ORDER_ROW_MAJOR;  // The order of each matrix.
  absl::string_view data = {};
};

// The elements of a shape of any number of dimensions; absent if they exceed 63 bits.
std::optional<int64_t> CountOf(const std::vector<int64_t>& shape);

// A tensor as matrices, if it has one to three dimensions; a vector is one row. A tensor of more
// dimensions, or none, becomes one line of all its elements, which must fit 63 bits.
PackedMatrix PackedTensor(v1::ElementType type, const std::vector<int64_t>& shape, v1::Order order,
                          absl::string_view data);

// A vector is one row. `data`: the array's bytes.
PackedMatrix PackedArray(const NpyArray& array, absl::string_view data);

// Outcomes of conversion. Each value counts at most once.
struct ConversionCounts {
  int64_t rounded = 0;
  int64_t saturated = 0;  // Became the type's largest or lowest finite value.
  int64_t infinite = 0;   // Became infinite, were finite.
  int64_t nan = 0;        // Were and are NaN.
  int64_t nan_lost = 0;   // Were NaN, which the type lacks.
};

// Converts the elements of `input`, row by row and matrix by matrix, to the type and layout of
// `output` (whose bytes are ignored), and returns the bytes. With equal types, bits are kept;
// otherwise values round to nearest, ties to even. Precondition: both have the same number of
// elements, and the bytes of each fit 63 bits.
std::string ConvertElements(const PackedMatrix& input, const PackedMatrix& output,
                            ConversionCounts& counts);

}  // namespace gemmd
