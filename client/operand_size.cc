// SPDX-License-Identifier: Apache-2.0
#include "client/operand_size.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gemmd/element_type.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

absl::Status Refused(absl::string_view field, absl::string_view member, int64_t got,
                     absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat(field, member, ": got ", got, ", want ", want));
}

// Bytes of `count` elements packed in one line.
Checked LineBytes(v1::ElementType type, int64_t count) {
  const std::optional<ElementType> known = KnownType(type);
  return known ? PackedBytes(*known, count) : 0;
}

// The number of lines and their length.
std::pair<int64_t, int64_t> LinesOf(const OperandShape& shape) {
  if (shape.order == v1::ORDER_COLUMN_MAJOR) return {shape.columns, shape.rows};
  return {shape.rows, shape.columns};
}

absl::Status CheckShape(absl::string_view field, const OperandShape& shape) {
  if (ElementBits(shape.type) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".type: got none, want an element type"));
  }
  if (shape.rows < 0) return Refused(field, ".rows", shape.rows, "0 or more");
  if (shape.columns < 0) return Refused(field, ".columns", shape.columns, "0 or more");
  if (shape.batch < 0) return Refused("batch", "", shape.batch, "at least 0");
  const auto [line_count, line_length] = LinesOf(shape);
  if (shape.leading_dimension != 0 && shape.leading_dimension < line_length) {
    return Refused(
        field, ".leading_dimension", shape.leading_dimension,
        absl::StrCat("0 or at least the length of a ",
                     shape.order == v1::ORDER_COLUMN_MAJOR ? "column" : "row", ", ", line_length));
  }
  return absl::OkStatus();
}

// The caller's distance between matrices.
absl::StatusOr<int64_t> GivenMatrixStride(absl::string_view field, v1::ElementType type,
                                          int64_t stride) {
  const auto bits = (Checked(stride) * ElementBits(type)).value();
  if (stride < 0 || !bits)
    return Refused(field, ".batch_stride", stride, "at least 0 and less than 2^63 bits");
  if (*bits % 8 != 0) {
    return Refused(field, ".batch_stride", stride,
                   absl::StrCat("a whole number of bytes of ", ElementBits(type), "-bit elements"));
  }
  return *bits / 8;
}

absl::StatusOr<SparseLayout> SparseLayoutOf(absl::string_view field, const OperandShape& shape) {
  return SparseLayoutOf(std::string_view(field.data(), field.size()), *KnownType(shape.type),
                        shape.rows, shape.columns);
}

absl::Status CheckSparse(absl::string_view field, const OperandShape& shape) {
  constexpr absl::string_view kWhere = " where sparsity is 2:4";
  if (!HasSparseForm(shape.type)) return SparseLayoutOf(field, shape).status();
  if (shape.order != v1::ORDER_ROW_MAJOR) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".order: got column, want row", kWhere));
  }
  if (shape.leading_dimension != 0) {
    return Refused(field, ".leading_dimension", shape.leading_dimension, absl::StrCat("0", kWhere));
  }
  if (shape.batch_stride.value_or(0) != 0) {
    return Refused(field, ".batch_stride", *shape.batch_stride, absl::StrCat("none or 0", kWhere));
  }
  return absl::OkStatus();
}

std::string WantedBatch(const OperandShape& shape, const OperandBytesRange& bytes) {
  if (shape.batch == 1) return "";
  return absl::StrCat(", batch ", shape.batch, " every ", bytes.matrix_stride, " bytes");
}

std::string WantedBytes(absl::string_view extents, const OperandShape& shape,
                        const OperandBytesRange& bytes) {
  if (shape.sparsity != v1::SPARSITY_NONE) {
    const auto sparse = SparseLayoutOf("", shape);
    return absl::StrCat(shape.rows, " lines of ", sparse->value_line_bytes, " bytes of values and ",
                        sparse->index_line_bytes, " of indices", WantedBatch(shape, bytes), " = ",
                        bytes.full);
  }
  const auto [line_count, line_length] = LinesOf(shape);
  const bool is_tight = shape.leading_dimension == 0 || shape.leading_dimension == line_length;
  const int bits = ElementBits(shape.type);
  if (is_tight && shape.batch == 1 && bits % 8 == 0) {
    return absl::StrCat(extents, "*", bits / 8, " = ", bytes.full);
  }
  std::string wanted = absl::StrCat(line_count, " lines of ", bytes.line_stride, " bytes",
                                    WantedBatch(shape, bytes), " = ", bytes.full);
  if (bytes.min != bytes.full)
    absl::StrAppend(&wanted, " (or ", bytes.min, " without the last padding)");
  return wanted;
}

absl::Status TooLarge(absl::string_view field, const OperandShape& shape) {
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": got ", shape.batch, " matrices of ", shape.rows, "x", shape.columns,
      " elements of type ", ElementTypeName(shape.type), ", want sizes in bytes below 2^63"));
}

absl::StatusOr<OperandBytesRange> SizeSparse(absl::string_view field, const OperandShape& shape) {
  RETURN_IF_ERROR(CheckSparse(field, shape));
  const auto sparse = SparseLayoutOf(field, shape);
  if (!sparse.ok()) return TooLarge(field, shape);
  const int64_t stride = shape.batch_stride.has_value() ? 0 : sparse->bytes;
  const Checked bytes =
      shape.batch == 0 ? Checked(0) : Checked(stride) * (shape.batch - 1) + sparse->bytes;
  if (!bytes.value()) return TooLarge(field, shape);
  return OperandBytesRange{*bytes.value(), *bytes.value(), 0, stride};
}

}  // namespace

bool HasSparseForm(v1::ElementType type) {
  const std::optional<ElementType> known = KnownType(type);
  return known && SparseFormOf(*known);
}

std::optional<int64_t> PackedLineBytes(v1::ElementType type, int64_t count) {
  return LineBytes(type, count).value();
}

OperandShape ShapeOf(const v1::TensorSpec& spec) {
  return {.type = spec.type(),
          .order = spec.order(),
          .rows = spec.rows(),
          .columns = spec.columns(),
          .leading_dimension = spec.leading_dimension(),
          .batch_stride = {},
          .batch = spec.has_matrices() ? spec.matrices() : 1,
          .sparsity = spec.sparsity()};
}

OperandShape ShapeOf(const MatrixView& view, int64_t batch) {
  return {view.type,         view.order, view.rows,    view.columns, view.leading_dimension,
          view.batch_stride, batch,      view.sparsity};
}

absl::StatusOr<OperandBytesRange> SizeOperand(absl::string_view field, const OperandShape& shape) {
  RETURN_IF_ERROR(CheckShape(field, shape));
  if (shape.sparsity != v1::SPARSITY_NONE) return SizeSparse(field, shape);
  const auto [line_count, line_length] = LinesOf(shape);
  const Checked line_stride =
      LineBytes(shape.type, shape.leading_dimension != 0 ? shape.leading_dimension : line_length);
  Checked matrix_stride = line_stride * line_count;
  if (shape.batch_stride.has_value()) {
    ASSIGN_OR_RETURN(matrix_stride, GivenMatrixStride(field, shape.type, *shape.batch_stride));
  }
  const bool is_empty = shape.rows == 0 || shape.columns == 0 || shape.batch == 0;
  const Checked before = is_empty ? 0 : matrix_stride * (shape.batch - 1);
  const Checked full = is_empty ? 0 : before + line_stride * line_count;
  const Checked min =
      is_empty ? 0 : before + line_stride * (line_count - 1) + LineBytes(shape.type, line_length);
  if (!line_stride.value() || !matrix_stride.value() || !full.value() || !min.value()) {
    return TooLarge(field, shape);
  }
  return OperandBytesRange{*min.value(), *full.value(), *line_stride.value(),
                           *matrix_stride.value()};
}

absl::Status CheckOperandBytes(absl::string_view field, absl::string_view extents,
                               const OperandShape& shape, int64_t got) {
  ASSIGN_OR_RETURN(const auto bytes, SizeOperand(field, shape));
  if (bytes.min <= got && got <= bytes.full) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ".data: got ", got, " bytes, want ", WantedBytes(extents, shape, bytes)));
}

}  // namespace gemmd
