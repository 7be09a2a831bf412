// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/layout.h"

#include "kernels/matrix/invalid.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

absl::Status TooLarge(std::string_view field, std::string_view what) {
  return Invalid(field, what, "sizes in bytes below 2^63");
}

}  // namespace

absl::StatusOr<MatrixLayout> TightLayout(std::string_view field, ElementType type, Order order,
                                         int64_t rows, int64_t columns) {
  MatrixLayout layout;
  layout.type = type;
  layout.order = order;
  layout.rows = rows;
  layout.columns = columns;
  layout.leading_dimension = layout.line_length();
  const Checked bytes = PackedBytes(type, layout.line_length()) * Checked(layout.lines());
  if (!bytes.value()) {
    return TooLarge(field, Concat(rows, "x", columns, " elements of type ", NameOf(type)));
  }
  layout.batch_stride_bytes = *bytes.value();
  return layout;
}

absl::StatusOr<MatrixLayout> TightSparseLayout(std::string_view field, ElementType type,
                                               int64_t rows, int64_t columns) {
  ASSIGN_OR_RETURN(const SparseLayout sparse, SparseLayoutOf(field, type, rows, columns));
  MatrixLayout layout;
  layout.type = type;
  layout.sparsity = Sparsity::k2To4;
  layout.rows = rows;
  layout.columns = columns;
  layout.leading_dimension = columns;
  layout.batch_stride_bytes = sparse.bytes;
  return layout;
}

absl::StatusOr<ByteCount> BytesOf(std::string_view field, const MatrixLayout& layout,
                                  int64_t batch) {
  // MatrixLayout computes the stride of lines in bits, so that count must fit too.
  const Checked line_bits = Checked(layout.leading_dimension) * Checked(BitsOf(layout.type)) + 7;
  if (!line_bits.value()) {
    return TooLarge(field, Concat("leading_dimension ", layout.leading_dimension, " of type ",
                                  NameOf(layout.type)));
  }
  if (layout.empty() || batch == 0) return ByteCount{};
  const Checked before = Checked(batch - 1) * Checked(layout.batch_stride_bytes);
  const Checked line_stride = layout.line_stride_bytes();
  const Checked last_line = PackedBytes(layout.type, layout.line_length());
  Checked least = before + Checked(layout.lines() - 1) * line_stride + last_line;
  Checked full = before + Checked(layout.lines()) * line_stride;
  if (layout.is_sparse()) {
    ASSIGN_OR_RETURN(const SparseLayout one,
                     SparseLayoutOf(field, layout.type, layout.rows, layout.columns));
    least = full = before + one.bytes;
  }
  if (!least.value() || !full.value()) {
    return TooLarge(field, Concat(batch, " matrices of ", layout.rows, "x", layout.columns,
                                  " elements of type ", NameOf(layout.type)));
  }
  return ByteCount{.least = *least.value(), .full = *full.value()};
}

double ElementsOf(const MatrixLayout& layout, int64_t batch) {
  const double count = static_cast<double>(layout.rows) * static_cast<double>(layout.columns);
  return layout.batch_stride_bytes == 0 ? count : count * static_cast<double>(batch);
}

}  // namespace gemmd
