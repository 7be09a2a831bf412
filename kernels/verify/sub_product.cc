// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/sub_product.h"

#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"

namespace gemmd::verify {
namespace {

// `rows` and `columns` are null if all are copied.
ElementGather OfDense(const MatrixLayout& whole, const MatrixLayout& sub, int64_t matrices,
                      const int64_t* rows, const int64_t* columns, const std::byte* from,
                      std::byte* to) {
  const bool is_row_major = sub.order == Order::kRowMajor;
  return {.from = from,
          .to = to,
          .lines = is_row_major ? rows : columns,
          .elements = is_row_major ? columns : rows,
          .matrices = sub.batch_stride_bytes == 0 ? 1 : matrices,
          .line_count = sub.lines(),
          .element_count = sub.line_length(),
          .from_line_bytes = whole.line_stride_bytes(),
          .from_matrix_bytes = whole.batch_stride_bytes,
          .to_matrix_bytes = sub.batch_stride_bytes,
          .bits = BitsOf(whole.type),
          .is_across = whole.order != sub.order};
}

// Values and indices have lines of their own.
Gathers OfSparse(const MatrixLayout& whole, const MatrixLayout& sub, int64_t matrices,
                 const int64_t* rows, const std::byte* from, std::byte* to) {
  const SparseLayout all = SparseLayoutOf("a", whole.type, whole.rows, whole.columns).value();
  const SparseLayout some = SparseLayoutOf("a", sub.type, sub.rows, sub.columns).value();
  ElementGather values = {.from = from,
                          .to = to,
                          .lines = rows,
                          .matrices = sub.batch_stride_bytes == 0 ? 1 : matrices,
                          .line_count = sub.rows,
                          .element_count = some.value_line_bytes,
                          .from_line_bytes = all.value_line_bytes,
                          .from_matrix_bytes = whole.batch_stride_bytes,
                          .to_matrix_bytes = sub.batch_stride_bytes};
  ElementGather indices = values;
  indices.from += all.indices_offset(0);
  indices.to += some.indices_offset(0);
  indices.element_count = some.index_line_bytes;
  indices.from_line_bytes = all.index_line_bytes;
  return {values, indices};
}

// Some elements of a vector.
ElementGather OfVector(int bits, const int64_t* indices, int64_t count, const std::byte* from,
                       std::byte* to) {
  return {.from = from,
          .to = to,
          .elements = indices,
          .line_count = 1,
          .element_count = count,
          .bits = bits};
}

// Each line of the copy has its own factors.
ElementGather OfBlocks(const BlockScale& whole, const BlockScale& sub, int64_t whole_extent,
                       int64_t extent, const Problem& problem, const int64_t* indices,
                       const std::byte* from, std::byte* to) {
  const int64_t line_bytes = whole.depth_blocks(problem.k) * BytesOf(whole.type);
  return {.from = from,
          .to = to,
          .lines = indices,
          .line_divisor = whole.lines,
          .matrices = whole.per_matrix ? problem.batch : 1,
          .line_count = extent,
          .element_count = line_bytes,
          .from_line_bytes = line_bytes,
          .from_matrix_bytes = whole.matrix_bytes(whole_extent, problem.k),
          .to_matrix_bytes = sub.matrix_bytes(extent, problem.k)};
}

}  // namespace

absl::StatusOr<Problem> SubProblemOf(const Problem& whole, int64_t rows, int64_t columns) {
  Problem sub = whole;
  sub.m = rows;
  sub.n = columns;
  sub.a_stays = sub.b_stays = sub.a_factors_stay = sub.b_factors_stay = false;
  const auto set = [](std::string_view field, Order order, int64_t lines, int64_t width,
                      MatrixLayout& layout) -> absl::Status {
    const bool is_shared = layout.batch_stride_bytes == 0;
    if (layout.is_sparse()) {
      ASSIGN_OR_RETURN(layout, TightSparseLayout(field, layout.type, lines, width));
    } else {
      ASSIGN_OR_RETURN(layout, TightLayout(field, layout.type, order, lines, width));
    }
    if (is_shared) layout.batch_stride_bytes = 0;
    return absl::OkStatus();
  };
  if (whole.has_product()) {
    RETURN_IF_ERROR(set("a", Order::kRowMajor, rows, whole.k, sub.a));
    RETURN_IF_ERROR(set("b", Order::kColumnMajor, whole.k, columns, sub.b));
    sub.a_blocks.lines = sub.b_blocks.lines = 1;
  }
  if (whole.has_c()) RETURN_IF_ERROR(set("c", Order::kRowMajor, rows, columns, sub.c));
  ASSIGN_OR_RETURN(sub.d, TightLayout("d", whole.d.type, Order::kRowMajor, rows, columns));
  return sub;
}

Gathers GathersOf(const Problem& whole, const Problem& sub, OperandRole role,
                  const Crossing& crossing, const std::byte* from, std::byte* to) {
  const auto of_factors = [&](ScaleKind kind, const BlockScale& blocks, const BlockScale& own,
                              int64_t whole_extent, int64_t extent,
                              const int64_t* indices) -> Gathers {
    constexpr int kFloatBits = 32;
    switch (kind) {
      case ScaleKind::kNone: return {};
      case ScaleKind::kTensor: return {OfVector(kFloatBits, nullptr, 1, from, to)};
      case ScaleKind::kVector: return {OfVector(kFloatBits, indices, extent, from, to)};
      case ScaleKind::kBlocks: break;
    }
    if (!whole.has_product()) return {};
    return {OfBlocks(blocks, own, whole_extent, extent, whole, indices, from, to)};
  };
  switch (role) {
    case OperandRole::kA:
      if (!whole.has_product()) return {};
      if (whole.a.is_sparse()) {
        return OfSparse(whole.a, sub.a, whole.batch, crossing.rows, from, to);
      }
      return {OfDense(whole.a, sub.a, whole.batch, crossing.rows, nullptr, from, to)};
    case OperandRole::kB:
      if (!whole.has_product()) return {};
      return {OfDense(whole.b, sub.b, whole.batch, nullptr, crossing.columns, from, to)};
    case OperandRole::kC:
      if (!whole.has_c()) return {};
      return {OfDense(whole.c, sub.c, whole.batch, crossing.rows, crossing.columns, from, to)};
    case OperandRole::kBias: {
      if (whole.bias_axis == BiasAxis::kNone) return {};
      const bool is_of_rows = whole.bias_axis == BiasAxis::kRows;
      return {OfVector(BitsOf(whole.bias_type), is_of_rows ? crossing.rows : crossing.columns,
                       is_of_rows ? sub.m : sub.n, from, to)};
    }
    case OperandRole::kAScale:
      return of_factors(whole.a_scale, whole.a_blocks, sub.a_blocks, whole.m, sub.m, crossing.rows);
    case OperandRole::kBScale:
      return of_factors(whole.b_scale, whole.b_blocks, sub.b_blocks, whole.n, sub.n,
                        crossing.columns);
  }
  return {};
}

ElementGather GatherOfD(const Problem& whole, const Problem& sub, const Crossing& crossing,
                        const std::byte* from, std::byte* to) {
  return OfDense(whole.d, sub.d, whole.batch, crossing.rows, crossing.columns, from, to);
}

}  // namespace gemmd::verify
