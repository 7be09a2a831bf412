// SPDX-License-Identifier: Apache-2.0
//
// Sparse operands: compressed from dense matrices for sending, and expanded to check a result.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gemmd/product.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// A batch of sparse matrices, and what compression dropped.
struct SparseOperand {
  std::string data = {};
  int64_t nonzeros = 0;  // Nonzero elements of the dense matrices.
  int64_t dropped = 0;   // Nonzero elements that were dropped.
};

// Whether a group with more nonzero units than can be kept loses its smallest ones (NaN is largest;
// among equals the last goes first) or is refused.
enum class Pruning { kNone, kByMagnitude };

// Compresses op(X) of `batch` matrices, or of one matrix if the view's batch stride is 0.
//
// Precondition: the view's bytes fit its shape, without gaps. Errors: InvalidArgument for a type
// without a sparse form and, without pruning, for the first group with too many nonzero elements,
// naming its row: "a.data: row 0, group 2: got 3 nonzero elements, want at most 2".
absl::StatusOr<SparseOperand> CompressOperand(absl::string_view field, const MatrixView& dense,
                                              int64_t batch, Pruning pruning);

// Expands a sparse operand to dense row-major rows x columns matrices, as many as its bytes
// contain. Precondition: BuildRequest made the operand.
std::string ExpandOperand(const v1::Operand& sparse, int64_t rows, int64_t columns);

}  // namespace gemmd
