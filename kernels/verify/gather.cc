// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/gather.h"

#include <algorithm>
#include <cstring>

#include "kernels/element.h"
#include "kernels/sparse24.h"

namespace gemmd::verify {
namespace {

MatrixLayout TightLines(const MatrixLayout& from, Order order, int64_t rows, int64_t columns) {
  MatrixLayout layout = from;
  layout.order = order;
  layout.rows = rows;
  layout.columns = columns;
  layout.leading_dimension = layout.line_length();
  layout.batch_stride_bytes = layout.lines() * layout.line_stride_bytes();
  return layout;
}

// Lines of one order out of a matrix. `is_along` says whether they are lines of it too.
void GatherLines(const MatrixLayout& layout, const std::byte* matrix, Indices lines, bool is_along,
                 GatheredMatrix& to) {
  const auto stride = static_cast<size_t>(to.layout.line_stride_bytes());
  to.bytes.resize(lines.size() * stride);
  const int64_t length = to.layout.line_length();
  const int bits = BitsOf(layout.type);
  const auto element_bytes = static_cast<size_t>(bits / 8);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::byte* const line = to.bytes.data() + i * stride;
    if (is_along) {
      std::memcpy(line, matrix + lines[i] * layout.line_stride_bytes(), stride);
      continue;
    }
    for (int64_t p = 0; p < length; ++p) {
      const std::byte* const from = matrix + p * layout.line_stride_bytes();
      if (bits % 8 == 0) {
        std::memcpy(line + static_cast<size_t>(p) * element_bytes,
                    from + static_cast<size_t>(lines[i]) * element_bytes, element_bytes);
      } else {
        StoreBits(layout.type, line, p, LoadBits(layout.type, from, lines[i]));
      }
    }
  }
}

GatheredMatrix GatherSparseRows(const MatrixLayout& layout, const std::byte* matrix, Indices rows) {
  GatheredMatrix to;
  to.layout = layout;
  to.layout.rows = static_cast<int64_t>(rows.size());
  const SparseLayout all = SparseLayoutOf("a", layout.type, layout.rows, layout.columns).value();
  const SparseLayout some =
      SparseLayoutOf("a", layout.type, to.layout.rows, layout.columns).value();
  to.layout.batch_stride_bytes = some.bytes;
  to.bytes.resize(static_cast<size_t>(some.bytes));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    std::memcpy(to.bytes.data() + some.values_offset(row), matrix + all.values_offset(rows[i]),
                static_cast<size_t>(some.value_line_bytes));
    std::memcpy(to.bytes.data() + some.indices_offset(row), matrix + all.indices_offset(rows[i]),
                static_cast<size_t>(some.index_line_bytes));
  }
  return to;
}

}  // namespace

GatheredMatrix GatherRows(const MatrixLayout& layout, const std::byte* matrix, Indices rows) {
  if (layout.is_sparse()) return GatherSparseRows(layout, matrix, rows);
  GatheredMatrix to;
  to.layout =
      TightLines(layout, Order::kRowMajor, static_cast<int64_t>(rows.size()), layout.columns);
  GatherLines(layout, matrix, rows, layout.order == Order::kRowMajor, to);
  return to;
}

GatheredMatrix GatherColumns(const MatrixLayout& layout, const std::byte* matrix, Indices columns) {
  GatheredMatrix to;
  to.layout =
      TightLines(layout, Order::kColumnMajor, layout.rows, static_cast<int64_t>(columns.size()));
  GatherLines(layout, matrix, columns, layout.order == Order::kColumnMajor, to);
  return to;
}

uint64_t BitsAt(const MatrixLayout& layout, const std::byte* matrix, int64_t row, int64_t column) {
  const bool is_row_major = layout.order == Order::kRowMajor;
  return LoadBits(layout.type, matrix + (is_row_major ? row : column) * layout.line_stride_bytes(),
                  is_row_major ? column : row);
}

std::vector<std::byte> GatherVector(ElementType type, const std::byte* vector, Indices indices) {
  const auto bits = static_cast<size_t>(BitsOf(type));
  std::vector<std::byte> to((indices.size() * bits + 7) / 8);
  for (size_t i = 0; i < indices.size(); ++i) {
    StoreBits(type, to.data(), static_cast<int64_t>(i), LoadBits(type, vector, indices[i]));
  }
  return to;
}

}  // namespace gemmd::verify
