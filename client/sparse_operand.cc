// SPDX-License-Identifier: Apache-2.0
#include "client/sparse_operand.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/operand_size.h"
#include "gemmd/v1/tensors.pb.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// Matrix number `matrix` of op(X), row major without gaps.
std::string RowMajor(const MatrixView& view, int64_t matrix, const SparseLayout& layout) {
  const bool by_columns = (view.order == v1::ORDER_COLUMN_MAJOR) != view.transpose;
  const int64_t line_bytes =
      by_columns ? *PackedLineBytes(view.type, layout.rows) : layout.dense_line_bytes;
  const int64_t bytes = line_bytes * (by_columns ? layout.columns : layout.rows);
  const std::byte* const from = view.data.data() + matrix * bytes;
  std::string dense(reinterpret_cast<const char*>(from),
                    static_cast<size_t>(by_columns ? 0 : bytes));
  if (!by_columns) return dense;
  dense.resize(static_cast<size_t>(layout.dense_bytes));
  auto* const to = reinterpret_cast<std::byte*>(dense.data());
  for (int64_t row = 0; row < layout.rows; ++row) {
    for (int64_t column = 0; column < layout.columns; ++column) {
      StoreBits(layout.type, to + row * layout.dense_line_bytes, column,
                LoadBits(layout.type, from + column * line_bytes, row));
    }
  }
  return dense;
}

int64_t CountNonzeros(const SparseLayout& layout, const std::byte* dense) {
  int64_t nonzeros = 0;
  for (int64_t row = 0; row < layout.rows; ++row) {
    for (int64_t column = 0; column < layout.columns; ++column) {
      const uint64_t bits = LoadBits(layout.type, dense + row * layout.dense_line_bytes, column);
      if (Decode(layout.type, bits) != 0) ++nonzeros;
    }
  }
  return nonzeros;
}

}  // namespace

absl::StatusOr<SparseOperand> CompressOperand(absl::string_view field, const MatrixView& dense,
                                              int64_t batch, Pruning pruning) {
  const OperandShape shape = {.type = dense.type,
                              .rows = dense.transpose ? dense.columns : dense.rows,
                              .columns = dense.transpose ? dense.rows : dense.columns,
                              .sparsity = v1::SPARSITY_2_4};
  RETURN_IF_ERROR(SizeOperand(field, shape).status());
  ASSIGN_OR_RETURN(const SparseLayout layout,
                   SparseLayoutOf({field.data(), field.size()}, *KnownType(shape.type), shape.rows,
                                  shape.columns));
  const int64_t matrices = dense.batch_stride.has_value() ? std::min<int64_t>(1, batch) : batch;
  SparseOperand operand;
  // A matrix without columns may have any number of rows, and there may be any number of such.
  if (layout.dense_bytes == 0) return operand;
  for (int64_t i = 0; i < matrices; ++i) {
    const std::string place =
        matrices == 1 ? absl::StrCat(field, ".data") : absl::StrCat(field, ".data: matrix ", i);
    std::string matrix = RowMajor(dense, i, layout);
    auto* const bytes = reinterpret_cast<std::byte*>(matrix.data());
    operand.nonzeros += CountNonzeros(layout, bytes);
    if (pruning == Pruning::kByMagnitude) operand.dropped += PruneByMagnitude(layout, bytes);
    const size_t before = operand.data.size();
    operand.data.resize(before + static_cast<size_t>(layout.bytes));
    RETURN_IF_ERROR(
        Compress(place, layout, bytes, reinterpret_cast<std::byte*>(operand.data.data() + before)));
  }
  return operand;
}

std::string ExpandOperand(const v1::Operand& sparse, int64_t rows, int64_t columns) {
  const SparseLayout layout = SparseLayoutOf("", *KnownType(sparse.type()), rows, columns).value();
  const int64_t matrices =
      layout.bytes == 0 ? 0 : static_cast<int64_t>(sparse.data().size()) / layout.bytes;
  std::string dense(static_cast<size_t>(matrices * layout.dense_bytes), 0);
  for (int64_t i = 0; i < matrices; ++i) {
    Expand(layout, reinterpret_cast<const std::byte*>(sparse.data().data()) + i * layout.bytes,
           reinterpret_cast<std::byte*>(dense.data()) + i * layout.dense_bytes);
  }
  return dense;
}

}  // namespace gemmd
