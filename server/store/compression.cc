// SPDX-License-Identifier: Apache-2.0
#include "server/store/compression.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/compress_view.h"
#include "kernels/mask24.h"
#include "kernels/prune24.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// A block within a row begins at a multiple of so many columns: in every form its values and its
// indices then begin at whole bytes.
constexpr int64_t kColumnGranule = 1024;

// A block counts as so many bytes at least, because it costs something however small it is.
constexpr int64_t kLeastBlockBytes = 64;

absl::Status Refuse(std::string_view field, std::string_view got, std::string_view want) {
  return absl::InvalidArgumentError(GotWant(field, got, want));
}

absl::Status CheckDense(std::string_view field, const MatrixLayout& layout) {
  if (layout.is_sparse()) return Refuse(field, "a sparse tensor", "a dense one");
  if (layout.order == Order::kRowMajor) return absl::OkStatus();
  return Refuse(Concat(field, ".order"), "COLUMN_MAJOR", "ROW_MAJOR");
}

absl::Status CheckMask(const TensorSpec& dense, const TensorSpec& mask) {
  RETURN_IF_ERROR(CheckDense("mask", mask.layout));
  if (mask.layout.type != ElementType::kB1) {
    return Refuse("mask.type", NameOf(mask.layout.type), "b1");
  }
  const auto shape_of = [](const TensorSpec& spec) {
    return Concat(spec.matrices, " matrices of ", spec.layout.rows, "x", spec.layout.columns);
  };
  if (shape_of(mask) == shape_of(dense)) return absl::OkStatus();
  return Refuse("mask", shape_of(mask), Concat("those of the tensor, ", shape_of(dense)));
}

// Copies a part of a matrix to where its lines follow each other.
void CopyLines(const std::byte* from, int64_t stride_bytes, int64_t rows, int64_t line_bytes,
               std::vector<std::byte>& to) {
  to.resize(static_cast<size_t>(rows * line_bytes));
  if (stride_bytes == line_bytes) {
    std::memcpy(to.data(), from, to.size());
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to.data() + row * line_bytes, from + row * stride_bytes,
                static_cast<size_t>(line_bytes));
  }
}

// Where an element of a dense matrix lies; `column` begins at a whole byte.
int64_t OffsetOf(const MatrixLayout& layout, int64_t matrix, int64_t row, int64_t column) {
  return matrix * layout.batch_stride_bytes + row * layout.line_stride_bytes() +
         column / 8 * BitsOf(layout.type);
}

}  // namespace

absl::StatusOr<CompressionPlan> PlanCompression(const TensorSpec& dense, const TensorSpec* mask) {
  RETURN_IF_ERROR(CheckDense("tensor", dense.layout));
  const MatrixLayout& layout = dense.layout;
  CompressionPlan plan;
  plan.dense = layout;
  ASSIGN_OR_RETURN(plan.sparse, SparseLayoutOf("tensor", layout.type, layout.rows, layout.columns));
  const auto factors = static_cast<int64_t>(dense.scale.size());
  if (factors > 1 && factors != layout.rows) {
    return Refuse("tensor.scale.values", Concat(factors, " values"),
                  Concat("0, 1 or rows = ", layout.rows,
                         ": a sparse tensor is A, and has factors of its rows"));
  }
  if (mask != nullptr) {
    RETURN_IF_ERROR(CheckMask(dense, *mask));
    plan.mask = mask->layout;
  }
  ASSIGN_OR_RETURN(const MatrixLayout sparse,
                   TightSparseLayout("tensor", layout.type, layout.rows, layout.columns));
  ASSIGN_OR_RETURN(plan.result, MakeTensorSpec(sparse, dense.matrices, dense.scale));
  return plan;
}

Compression::Compression(const CompressionPlan& plan, const std::byte* dense, const std::byte* mask,
                         std::byte* compressed)
    : plan_(plan), dense_(dense), mask_(mask), compressed_(compressed) {
  if (plan_.result.bytes == 0) matrix_ = plan_.result.matrices;
}

absl::StatusOr<bool> Compression::Step(Scratch& scratch) {
  // A block has about as many bytes, so what is left of a step is no room for another one.
  int64_t left = kStepBytes;
  while (left > kStepBytes / 2 && matrix_ < plan_.result.matrices) {
    const Block block = NextBlock();
    RETURN_IF_ERROR(Compress(block, scratch));
    Advance(block);
    left -= std::max(kLeastBlockBytes, static_cast<int64_t>(scratch.dense.size()));
  }
  return matrix_ == plan_.result.matrices;
}

Compression::Block Compression::NextBlock() const {
  const SparseLayout& sparse = plan_.sparse;
  const int64_t line_bytes =
      std::max(sparse.dense_line_bytes, sparse.value_line_bytes + sparse.index_line_bytes);
  if (line_bytes <= kStepBytes) {
    return {row_, std::min(sparse.rows - row_, kStepBytes / line_bytes), 0, sparse.columns};
  }
  const int64_t most = kStepBytes * 8 / BitsOf(sparse.type) / kColumnGranule * kColumnGranule;
  return {row_, 1, column_, std::min(sparse.columns - column_, most)};
}

absl::Status Compression::Compress(const Block& block, Scratch& scratch) const {
  ASSIGN_OR_RETURN(const SparseLayout layout,
                   SparseLayoutOf("tensor", plan_.sparse.type, block.rows, block.columns));
  CopyLines(dense_ + OffsetOf(plan_.dense, matrix_, block.row, block.column),
            plan_.dense.line_stride_bytes(), block.rows, layout.dense_line_bytes, scratch.dense);
  RETURN_IF_ERROR(Prune(block, layout, scratch));
  scratch.compressed.resize(static_cast<size_t>(layout.bytes));
  RETURN_IF_ERROR(
      gemmd::Compress("tensor", layout, scratch.dense.data(), scratch.compressed.data()));
  Store(block, layout, scratch.compressed.data());
  return absl::OkStatus();
}

absl::Status Compression::Prune(const Block& block, const SparseLayout& layout,
                                Scratch& scratch) const {
  if (!plan_.mask) {
    gemmd::Prune(layout, scratch.dense.data());
    return absl::OkStatus();
  }
  CopyLines(mask_ + OffsetOf(*plan_.mask, matrix_, block.row, block.column),
            plan_.mask->line_stride_bytes(), block.rows, (block.columns + 7) / 8, scratch.mask);
  const std::optional<OverfullGroup> overfull =
      KeepMarked(layout, scratch.mask.data(), scratch.dense.data());
  if (!overfull) return absl::OkStatus();
  const int64_t line = matrix_ * plan_.sparse.rows + block.row + overfull->row;
  const int64_t group = block.column / layout.form.group() + overfull->group;
  return RefuseMask(
      plan_.sparse, plan_.result.matrices,
      MakeBadGroup(line * plan_.sparse.groups + group, static_cast<uint32_t>(overfull->units)));
}

void Compression::Store(const Block& block, const SparseLayout& layout,
                        const std::byte* compressed) const {
  const SparseLayout& whole = plan_.sparse;
  const int64_t groups = block.column / whole.form.group();
  const int64_t values = groups * (whole.form.group() / 2) * BitsOf(whole.type) / 8;
  const int64_t indices = groups * whole.form.index_bits() / 8;
  std::byte* const target = compressed_ + matrix_ * whole.bytes;
  std::memcpy(target + whole.values_offset(block.row) + values, compressed,
              static_cast<size_t>(layout.indices_offset(0)));
  std::memcpy(target + whole.indices_offset(block.row) + indices,
              compressed + layout.indices_offset(0),
              static_cast<size_t>(layout.bytes - layout.indices_offset(0)));
}

void Compression::Advance(const Block& block) {
  column_ = block.column + block.columns;
  if (column_ < plan_.sparse.columns) return;
  column_ = 0;
  row_ = block.row + block.rows;
  if (row_ < plan_.sparse.rows) return;
  row_ = 0;
  ++matrix_;
}

}  // namespace gemmd
