// SPDX-License-Identifier: Apache-2.0
//
// The sizes of an operand's matrices in bytes, and the error text if the given bytes do not fit.
// The wording is the server's, so that a mistake reads the same wherever it is found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemmd/product.h"
#include "gemmd/v1/resident.pb.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/element.h"

namespace gemmd {

// The type's name in kernels/matrix; nullopt for the unspecified type and unknown values.
std::optional<ElementType> KnownType(v1::ElementType type);

// Whether a sparse A can be of the type; see Sparsity in tensors.proto.
bool HasSparseForm(v1::ElementType type);

// The stored matrices of one operand.
struct OperandShape {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  v1::Order order = v1::ORDER_ROW_MAJOR;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t leading_dimension = 0;             // In elements. 0: the line's length.
  std::optional<int64_t> batch_stride = {};  // In elements. Absent: no gaps.
  int64_t batch = 1;
  v1::Sparsity sparsity = v1::SPARSITY_NONE;  // A sparse matrix is row major and has no strides.
};

// The matrices of a tensor, without the factors of blocks that follow them.
OperandShape ShapeOf(const v1::TensorSpec& spec);

// The stored matrices of a view.
OperandShape ShapeOf(const MatrixView& view, int64_t batch = 1);

// Bytes of all matrices: `min` ends after the last element, `full` pads the last line.
struct OperandBytesRange {
  int64_t min = 0;
  int64_t full = 0;
  int64_t line_stride = 0;    // From line to line.
  int64_t matrix_stride = 0;  // From matrix to matrix.
};

// Bytes of `count` elements packed in one line; nullopt if they exceed 63 bits.
std::optional<int64_t> PackedLineBytes(v1::ElementType type, int64_t count);

// Errors: InvalidArgument if the shape is impossible or its sizes exceed 63 bits. `field`: "a".
absl::StatusOr<OperandBytesRange> SizeOperand(absl::string_view field, const OperandShape& shape);

// OK if `got` bytes fit the layout; otherwise "a.data: got 4096 bytes, want m*k*4 = 8192".
// `extents` spells the stored shape: "m*k".
absl::Status CheckOperandBytes(absl::string_view field, absl::string_view extents,
                               const OperandShape& shape, int64_t got);

}  // namespace gemmd
