// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_operands.h"

#include <algorithm>

#include "kernels/abortable_loop.h"
#include "kernels/checked.h"
#include "kernels/cpu/block_sums.h"
#include "kernels/element.h"
#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kAlignment = 64;

// Elements that are decoded at once; whole bytes of any type.
constexpr int64_t kChunk = 512;

// Puts one part of the workspace after the other.
class Places {
 public:
  int64_t Take(Checked bytes) {
    const int64_t at = end_.value().value_or(0);
    const Checked padded = end_ + bytes + Checked(kAlignment - 1);
    end_ = padded.value() ? Checked(*padded.value() / kAlignment * kAlignment) : padded;
    return at;
  }
  Checked end() const { return end_; }

 private:
  Checked end_ = Checked(0);
};

// Calls store(index, value) for every element of a line, until the flag is set.
template <typename Store>
void DecodeEach(const MatrixLayout& layout, const std::byte* matrix, int64_t line, AbortFlag abort,
                const Store& store) {
  float values[kChunk];
  const std::byte* const start = matrix + line * layout.line_stride_bytes();
  for (int64_t first = 0; first < layout.line_length() && !IsSet(abort); first += kChunk) {
    const int64_t count = std::min(kChunk, layout.line_length() - first);
    DecodeLine(layout.type, start + first * BitsOf(layout.type) / 8, count, values);
    for (int64_t i = 0; i < count; ++i) store(first + i, values[i]);
  }
}

}  // namespace

int64_t PanelsOf(const Problem& problem) {
  return problem.n / kPanelColumns + (problem.n % kPanelColumns != 0);
}

absl::StatusOr<BlockPlan> PlanBlocks(const Problem& problem) {
  BlockPlan plan;
  if (!problem.has_output() || !problem.has_product()) return plan;
  Places places;
  const Checked depth(problem.k);
  const Checked panel_bytes = Checked(PanelsOf(problem)) * Checked(kPanelColumns * kFloatBytes);
  if (problem.a.is_sparse()) {
    ASSIGN_OR_RETURN(const SparseLayout sparse,
                     SparseLayoutOf("a", problem.a.type, problem.m, problem.k));
    plan.dense_a = places.Take(sparse.dense_bytes);
  }
  plan.a = places.Take(Checked(problem.m) * depth * Checked(kFloatBytes));
  plan.b = places.Take(panel_bytes * depth);
  if (const BlockScale* const blocks = problem.blocks_of_a()) {
    plan.a_factors = places.Take(Checked(blocks->line_blocks(problem.m)) *
                                 Checked(blocks->depth_blocks(problem.k)) * Checked(kFloatBytes));
  }
  if (const BlockScale* const blocks = problem.blocks_of_b()) {
    plan.b_factors = places.Take(panel_bytes * Checked(blocks->depth_blocks(problem.k)));
  }
  if (problem.d.type != ElementType::kF32) {
    plan.totals = places.Take(Checked(problem.m) * Checked(problem.n) * Checked(kFloatBytes));
  }
  if (!places.end().value()) {
    return absl::ResourceExhaustedError(
        GotWant("workspace", "more than 2^63 bytes", "operands that fit memory when widened"));
  }
  plan.bytes = *places.end().value();
  return plan;
}

MatrixLayout DenseLayoutOf(const MatrixLayout& layout) {
  if (!layout.is_sparse()) return layout;
  return TightLayout("a", layout.type, Order::kRowMajor, layout.rows, layout.columns).value();
}

void WidenA(const MatrixLayout& layout, const std::byte* matrix, float* lines, bool is_shared,
            AbortFlag abort) {
  const int64_t k = layout.columns;
  const bool is_by_rows = layout.order == Order::kRowMajor;
  ForEachUnlessAborted(abort, is_shared, layout.lines(), [&](int64_t line) {
    DecodeEach(layout, matrix, line, abort, [&](int64_t index, float value) {
      lines[is_by_rows ? line * k + index : index * k + line] = value;
    });
  });
}

void WidenB(const MatrixLayout& layout, const std::byte* matrix, float* panels, bool is_shared,
            AbortFlag abort) {
  const int64_t k = layout.rows;
  const int64_t n = layout.columns;
  const bool is_by_rows = layout.order == Order::kRowMajor;
  const auto place = [&](int64_t depth, int64_t column) -> float& {
    return panels[(column / kPanelColumns * k + depth) * kPanelColumns + column % kPanelColumns];
  };
  ForEachUnlessAborted(abort, is_shared, layout.lines(), [&](int64_t line) {
    DecodeEach(layout, matrix, line, abort, [&](int64_t index, float value) {
      (is_by_rows ? place(line, index) : place(index, line)) = value;
    });
  });
  // Columns beyond the matrix, so that nothing is computed with what lay there before.
  if (n % kPanelColumns == 0) return;
  float* const last = panels + n / kPanelColumns * k * kPanelColumns;
  for (int64_t depth = 0; depth < k && !IsSet(abort); ++depth) {
    std::fill(last + depth * kPanelColumns + n % kPanelColumns, last + (depth + 1) * kPanelColumns,
              0.0F);
  }
}

void DecodeFactorsOfA(const Problem& problem, const std::byte* factors, float* decoded,
                      AbortFlag abort) {
  const BlockScale& blocks = problem.a_blocks;
  const int64_t count = blocks.line_blocks(problem.m) * blocks.depth_blocks(problem.k);
  for (int64_t i = 0; i < count && !IsSet(abort); ++i) {
    decoded[i] = DecodeFactor(blocks.type, factors + i * BytesOf(blocks.type));
  }
}

void DecodeFactorsOfB(const Problem& problem, const std::byte* factors, float* decoded,
                      AbortFlag abort) {
  const BlockScale& blocks = problem.b_blocks;
  const int64_t depth_blocks = blocks.depth_blocks(problem.k);
  for (int64_t column = 0; column < PanelsOf(problem) * kPanelColumns; ++column) {
    float* const to =
        decoded + column / kPanelColumns * depth_blocks * kPanelColumns + column % kPanelColumns;
    const std::byte* const line = factors + std::min(column, problem.n - 1) / blocks.lines *
                                                depth_blocks * BytesOf(blocks.type);
    for (int64_t block = 0; block < depth_blocks && !IsSet(abort); ++block) {
      to[block * kPanelColumns] = DecodeFactor(blocks.type, line + block * BytesOf(blocks.type));
    }
  }
}

}  // namespace gemmd
