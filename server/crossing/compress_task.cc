// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/compress_task.h"

#include "kernels/checked.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

absl::StatusOr<int64_t> BytesOfDense(std::string_view field, const MatrixLayout& layout,
                                     int64_t matrices) {
  const bool is_dense = layout.order == Order::kRowMajor && !layout.is_sparse() &&
                        layout.rows >= 0 && layout.columns >= 0 &&
                        layout.leading_dimension >= layout.columns &&
                        layout.batch_stride_bytes >= 0;
  if (!is_dense) {
    return absl::InvalidArgumentError(GotWant(field, "another layout", "a dense one, row major"));
  }
  ASSIGN_OR_RETURN(const ByteCount bytes, BytesOf(field, layout, matrices));
  return bytes.least;
}

}  // namespace

absl::StatusOr<CompressBytes> BytesOf(const CompressTask& task) {
  if (task.matrices < 0) {
    return absl::InvalidArgumentError(GotWant("matrices", Concat(task.matrices), "0 or more"));
  }
  CompressBytes bytes;
  ASSIGN_OR_RETURN(bytes.dense, BytesOfDense("tensor", task.dense, task.matrices));
  ASSIGN_OR_RETURN(const SparseLayout sparse,
                   SparseLayoutOf("tensor", task.dense.type, task.dense.rows, task.dense.columns));
  if (task.mask_block != 0) {
    ASSIGN_OR_RETURN(bytes.mask, BytesOfDense("mask", task.mask, task.matrices));
    const bool fits = task.mask.type == ElementType::kB1 && task.mask.rows == task.dense.rows &&
                      task.mask.columns == task.dense.columns;
    if (!fits) return absl::InvalidArgumentError(GotWant("mask", "another one", "the tensor's"));
  }
  const Checked result = Checked(task.matrices) * Checked(sparse.bytes);
  const Checked lines = Checked(task.matrices) * Checked(sparse.rows);
  const bool are_lines = lines.value() && task.first_line >= 0 &&
                         task.first_line <= task.end_line && task.end_line <= *lines.value();
  if (!result.value() || !are_lines) {
    return absl::InvalidArgumentError(
        GotWant("lines", Concat(task.first_line, " to ", task.end_line), "some of the tensor's"));
  }
  bytes.result = *result.value();
  return bytes;
}

CompressView ViewOf(const CompressTask& task, const std::byte* dense, const std::byte* mask,
                    std::byte* result) {
  CompressView view;
  const auto layout =
      SparseLayoutOf("tensor", task.dense.type, task.dense.rows, task.dense.columns);
  if (!layout.ok()) return view;  // Without lines.
  view.layout = *layout;
  view.dense = dense;
  view.dense_line_stride_bytes = task.dense.line_stride_bytes();
  view.dense_matrix_stride_bytes = task.dense.batch_stride_bytes;
  if (task.mask_block != 0) {
    view.mask = mask;
    view.mask_line_stride_bytes = task.mask.line_stride_bytes();
    view.mask_matrix_stride_bytes = task.mask.batch_stride_bytes;
  }
  view.compressed = result;
  view.first_line = task.first_line;
  view.end_line = task.end_line;
  return view;
}

}  // namespace gemmd
