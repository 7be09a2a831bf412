// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/gpu_panels.h"

#include <algorithm>
#include <numeric>

namespace gemmd {
namespace {

using Axis = GpuPanels::Axis;

// Two panels are queued ahead; together they end well within 50 ms.
constexpr int64_t kMostNs = 10'000'000;

constexpr int64_t kAlignment = 256;  // Bytes: kJobAlignment.

// The nearest multiple of the granule, at least one.
int64_t StepOf(int64_t extent, int64_t parts, int64_t granule) {
  const int64_t wanted = (extent - 1) / parts + 1;
  return std::min(extent, std::max<int64_t>(1, (wanted + granule / 2) / granule) * granule);
}

// How many matrices further on a matrix is aligned as the first one is.
int64_t BatchGranule(const Problem& problem) {
  const auto is_aligned = [](const MatrixLayout& layout) {
    return layout.batch_stride_bytes % kAlignment == 0;
  };
  const bool are_aligned =
      is_aligned(problem.d) && (!problem.has_c() || is_aligned(problem.c)) &&
      (!problem.has_product() || (is_aligned(problem.a) && is_aligned(problem.b)));
  return are_aligned ? 1 : kAlignment;
}

// So many lines of any length are aligned, and so many elements of each type that is there. Tiles
// of kernels divide it.
int64_t MatrixGranule(const Problem& problem) {
  int64_t granule = kAlignment;
  const auto heed = [&](ElementType type) {
    granule = std::lcm(granule, 8 * kAlignment / std::gcd(8 * kAlignment, BitsOf(type)));
  };
  heed(problem.d.type);
  if (problem.has_c()) heed(problem.c.type);
  if (problem.bias_axis != BiasAxis::kNone) heed(problem.bias_type);
  if (!problem.has_product()) return granule;
  heed(problem.a.type);
  heed(problem.b.type);
  return granule;
}

// From the start of a matrix to a multiple of MatrixGranule along an axis.
int64_t OffsetOf(const MatrixLayout& layout, Axis axis, int64_t first) {
  if (axis == Axis::kBatch) return first * layout.batch_stride_bytes;
  const bool is_across_lines = (axis == Axis::kRows) == (layout.order == Order::kRowMajor);
  return is_across_lines ? first * layout.line_stride_bytes() : first / 8 * BitsOf(layout.type);
}

// The number of the panel's first matrix, row or column.
int64_t FirstOf(const GpuPanels& panels, int64_t index) { return index * panels.step; }

}  // namespace

GpuPanels DivideLaunch(const Problem& problem, int64_t predicted_ns) {
  const int64_t parts = std::max<int64_t>(1, (predicted_ns - 1) / kMostNs + 1);
  if (parts == 1) return {Axis::kBatch, problem.batch, problem.batch};
  const GpuPanels over_batch = {Axis::kBatch, problem.batch,
                                StepOf(problem.batch, parts, BatchGranule(problem))};
  // The values and the indices of a sparse A lie apart, so its rows stay together.
  const bool is_over_rows = problem.m > problem.n && !problem.a.is_sparse();
  const int64_t extent = is_over_rows ? problem.m : problem.n;
  const GpuPanels over_matrix = {is_over_rows ? Axis::kRows : Axis::kColumns, extent,
                                 StepOf(extent, parts, MatrixGranule(problem))};
  return over_batch.count() >= over_matrix.count() ? over_batch : over_matrix;
}

Problem ProblemOfGpuPanel(const Problem& problem, const GpuPanels& panels, int64_t index) {
  Problem panel = problem;
  const int64_t extent = std::min(panels.step, panels.extent - FirstOf(panels, index));
  switch (panels.axis) {
    case Axis::kBatch: panel.batch = extent; break;
    case Axis::kRows: panel.m = panel.a.rows = panel.c.rows = panel.d.rows = extent; break;
    case Axis::kColumns:
      panel.n = panel.b.columns = panel.c.columns = panel.d.columns = extent;
      break;
  }
  return panel;
}

GemmArgs PanelArgs(const GemmArgs& args, const GpuPanels& panels, int64_t index,
                   const Problem& panel) {
  const Problem& problem = args.problem;
  const Axis axis = panels.axis;
  const int64_t first = FirstOf(panels, index);
  const auto size = [](int64_t value) { return static_cast<size_t>(value); };
  const bool is_rows = axis == Axis::kRows;
  const bool is_columns = axis == Axis::kColumns;
  const std::byte* const a =
      args.a == nullptr || is_columns ? args.a : args.a + OffsetOf(problem.a, axis, first);
  const std::byte* const b =
      args.b == nullptr || is_rows ? args.b : args.b + OffsetOf(problem.b, axis, first);
  const std::byte* const c =
      args.c == nullptr ? nullptr : args.c + OffsetOf(problem.c, axis, first);
  const bool has_bias_along = (is_rows && problem.bias_axis == BiasAxis::kRows) ||
                              (is_columns && problem.bias_axis == BiasAxis::kColumns);
  const std::byte* const bias =
      has_bias_along ? args.bias + first / 8 * BitsOf(problem.bias_type) : args.bias;
  const auto scale = [&](absl::Span<const float> whole, bool is_along, int64_t extent) {
    return is_along && whole.size() > 1 ? whole.subspan(size(first), size(extent)) : whole;
  };
  return {.problem = panel,
          .target = args.target,
          .a = a,
          .b = b,
          .c = c,
          .bias = bias,
          .a_scale = scale(args.a_scale, is_rows, panel.m),
          .b_scale = scale(args.b_scale, is_columns, panel.n),
          .d = args.d + OffsetOf(problem.d, axis, first),
          .workspace = args.workspace,
          .abort = args.abort,
          .abort_word = args.abort_word};
}

}  // namespace gemmd
