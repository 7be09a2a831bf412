// SPDX-License-Identifier: Apache-2.0
#include "server/wire/tensor_part.h"

#include <optional>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// A range of `extent` things; the rest of them where no count is given.
absl::Status ParseRange(std::string_view field, std::string_view name, int64_t extent,
                        int64_t first, std::optional<int64_t> given, int64_t& count) {
  count = given.value_or(first >= 0 && first <= extent ? extent - first : 0);
  if (first >= 0 && first <= extent && count >= 0 && count <= extent - first) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(Concat(field, ": got ", name, " ", first, " and on, ", count,
                                      " of them, want some of the ", extent, " of the tensor"));
}

bool Meet(int64_t first, int64_t count, int64_t other_first, int64_t other_count) {
  return count > 0 && other_count > 0 && first < other_first + other_count &&
         other_first < first + count;
}

}  // namespace

absl::StatusOr<PartOfTensor> ParsePart(std::string_view field, const v1::TensorPart& wire,
                                       const TensorSpec& spec) {
  const MatrixLayout& layout = spec.layout;
  const auto given = [](bool has, int64_t count) {
    return has ? std::optional<int64_t>(count) : std::nullopt;
  };
  PartOfTensor part;
  part.first_row = wire.first_row();
  part.first_column = wire.first_column();
  part.first_matrix = wire.first_matrix();
  RETURN_IF_ERROR(ParseRange(field, "rows", layout.rows, part.first_row,
                             given(wire.has_rows(), wire.rows()), part.rows));
  RETURN_IF_ERROR(ParseRange(field, "columns", layout.columns, part.first_column,
                             given(wire.has_columns(), wire.columns()), part.columns));
  RETURN_IF_ERROR(ParseRange(field, "matrices", spec.matrices, part.first_matrix,
                             given(wire.has_matrices(), wire.matrices()), part.matrices));
  // The tensor's bytes fit 63 bits, and the part lies within them.
  part.offset_bytes = part.first_matrix * layout.batch_stride_bytes;
  if (layout.is_sparse()) {
    if (part.rows == layout.rows && part.columns == layout.columns) return part;
    return absl::InvalidArgumentError(
        GotWant(field, "a part of the rows or columns of a sparse tensor", "all of them"));
  }
  const bool is_row_major = layout.order == Order::kRowMajor;
  const int64_t first_line = is_row_major ? part.first_row : part.first_column;
  const int64_t first_element = is_row_major ? part.first_column : part.first_row;
  const int64_t first_bit = first_element * BitsOf(layout.type);
  if (first_bit % 8 != 0) {
    return absl::InvalidArgumentError(Concat(field, ": got lines from element ", first_element,
                                             " on, want a start on a whole byte"));
  }
  part.offset_bytes += first_line * layout.line_stride_bytes() + first_bit / 8;
  return part;
}

absl::Status CheckWholeBytes(std::string_view field, const PartOfTensor& part,
                             const TensorSpec& spec) {
  const MatrixLayout& layout = spec.layout;
  const bool is_row_major = layout.order == Order::kRowMajor;
  const int64_t end = is_row_major ? part.first_column + part.columns : part.first_row + part.rows;
  if (end == layout.line_length() || end * BitsOf(layout.type) % 8 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Concat(field, ": got lines up to element ", end, ", want an end on a whole byte"));
}

absl::Status CheckShape(std::string_view field, const PartOfTensor& part, int64_t rows,
                        int64_t columns, int64_t batch, bool may_broadcast) {
  if (part.rows != rows || part.columns != columns) {
    return absl::InvalidArgumentError(Concat(field, ".tensor: got ", part.rows, " rows and ",
                                             part.columns, " columns, want ", rows, " and ",
                                             columns));
  }
  if (part.matrices == batch || (may_broadcast && part.matrices == 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat(field, ".tensor: got ", part.matrices,
                                           " matrices, want ", may_broadcast ? "1 or " : "",
                                           "batch = ", batch));
}

bool Overlap(const PartOfTensor& a, const PartOfTensor& b) {
  return Meet(a.first_row, a.rows, b.first_row, b.rows) &&
         Meet(a.first_column, a.columns, b.first_column, b.columns) &&
         Meet(a.first_matrix, a.matrices, b.first_matrix, b.matrices);
}

absl::StatusOr<absl::Span<const float>> ScaleOfPart(std::string_view field,
                                                    const PartOfTensor& part, const Tensor& tensor,
                                                    bool by_row) {
  const absl::Span<const float> scale = tensor.spec.scale;
  if (scale.size() <= 1) return scale;
  const MatrixLayout& layout = tensor.spec.layout;
  const int64_t extent = by_row ? layout.rows : layout.columns;
  if (static_cast<int64_t>(scale.size()) != extent) {
    return absl::InvalidArgumentError(
        Concat(field, ".tensor: got ", scale.size(), " factors, want one for each ",
               by_row ? "row" : "column", " of the tensor, ", extent));
  }
  return scale.subspan(static_cast<size_t>(by_row ? part.first_row : part.first_column),
                       static_cast<size_t>(by_row ? part.rows : part.columns));
}

}  // namespace gemmd
