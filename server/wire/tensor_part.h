// SPDX-License-Identifier: Apache-2.0
//
// A range of the rows, columns and matrices of a tensor: where it lies in the tensor's bytes, and
// what it shares with another one.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gemmd/v1/tensors.pb.h"
#include "server/store/tensor.h"

namespace gemmd {

struct PartOfTensor {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_column = 0;
  int64_t columns = 0;
  int64_t first_matrix = 0;
  int64_t matrices = 0;
  int64_t offset_bytes = 0;  // Where its first element is.

  friend bool operator==(const PartOfTensor&, const PartOfTensor&) = default;
};

// Errors: OutOfRange where the range is not within the tensor; InvalidArgument where a line of it
// would not start on a whole byte, and for a part of the rows or columns of a sparse tensor.
absl::StatusOr<PartOfTensor> ParsePart(std::string_view field, const v1::TensorPart& part,
                                       const TensorSpec& spec);

// Whether the part can be written without a neighbour's bits. Errors: InvalidArgument.
absl::Status CheckWholeBytes(std::string_view field, const PartOfTensor& part,
                             const TensorSpec& spec);

// Whether it is the stored matrix of a product's operand. Errors: InvalidArgument.
absl::Status CheckShape(std::string_view field, const PartOfTensor& part, int64_t rows,
                        int64_t columns, int64_t batch, bool may_broadcast);

// Whether two parts of one tensor have an element in common.
bool Overlap(const PartOfTensor& a, const PartOfTensor& b);

// The tensor's factors for the rows of the part, or for its columns. Errors: InvalidArgument where
// it has those of the other.
absl::StatusOr<absl::Span<const float>> ScaleOfPart(std::string_view field,
                                                    const PartOfTensor& part, const Tensor& tensor,
                                                    bool by_row);

}  // namespace gemmd
