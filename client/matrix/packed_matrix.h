// SPDX-License-Identifier: Apache-2.0
//
// Matrices in memory as the wire has them, seen where they lie.
#pragma once

#include <cstdint>
#include <optional>
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

}  // namespace gemmd
