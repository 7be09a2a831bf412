// SPDX-License-Identifier: Apache-2.0
//
// Matrices in memory as the wire has them, seen where they lie, and converted to other types,
// orders and shapes.
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

// The elements of a shape of any number of dimensions; absent where they leave 63 bits.
std::optional<int64_t> CountOf(const std::vector<int64_t>& shape);

// A tensor of any number of dimensions as matrices, where it has up to three; a vector is one row.
// One of more dimensions, or of none, is one line of all its elements, if they fit 63 bits.
PackedMatrix PackedTensor(v1::ElementType type, const std::vector<int64_t>& shape, v1::Order order,
                          absl::string_view data);

// A vector is one row. `data` are the array's bytes, wherever they lie.
PackedMatrix PackedArray(const NpyArray& array, absl::string_view data);

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
