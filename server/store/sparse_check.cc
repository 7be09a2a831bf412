// SPDX-License-Identifier: Apache-2.0
#include "server/store/sparse_check.h"

#include <algorithm>
#include <string>

#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {

absl::StatusOr<bool> SparseCheck::Advance(int64_t most_bytes) {
  const MatrixLayout& layout = spec_.layout;
  if (!layout.is_sparse() || spec_.bytes == 0) return true;
  ASSIGN_OR_RETURN(const SparseLayout one,
                   SparseLayoutOf("spec", layout.type, layout.rows, layout.columns));
  const int64_t row_bytes = std::max<int64_t>(1, one.value_line_bytes + one.index_line_bytes);
  int64_t most_rows = std::max<int64_t>(1, most_bytes / row_bytes);
  while (matrix_ < spec_.matrices && most_rows > 0) {
    const int64_t end = std::min(one.rows, row_ + most_rows);
    const std::string place = spec_.matrices == 1 ? "chunk" : Concat("chunk: matrix ", matrix_);
    RETURN_IF_ERROR(CheckCompressedRows(place, one, bytes_ + matrix_ * one.bytes, row_, end));
    most_rows -= end - row_;
    row_ = end;
    if (row_ < one.rows) continue;
    ++matrix_;
    row_ = 0;
  }
  return matrix_ == spec_.matrices;
}

}  // namespace gemmd
