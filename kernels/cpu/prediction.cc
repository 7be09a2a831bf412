// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/prediction.h"

#include <algorithm>

#include "kernels/cpu/threads.h"

namespace gemmd {
namespace {

// Operands of more than this many bytes come from memory each time.
constexpr double kCachedBytes = 16.0 * 1024 * 1024;

// The parts of one matrix's time on one thread.
struct MatrixSeconds {
  double preparing_a = 0;
  double preparing_b = 0;
  double multiplying = 0;
  double finishing = 0;
};

const EngineTimes* Find(const HostCosts& costs, std::string_view engine) {
  for (const EngineTimes& times : costs.engines) {
    if (times.engine == engine) return &times;
  }
  return nullptr;
}

double Preparing(const HostCosts& costs, const MatrixLayout& operand,
                 const std::optional<ElementType>& widened) {
  const double expansion = operand.is_sparse() ? ExpansionSeconds(costs, operand) : 0;
  return expansion + (widened ? WideningSeconds(costs, operand, *widened) : 0);
}

double BytesOfMatrix(const MatrixLayout& layout) {
  return static_cast<double>(layout.rows) * static_cast<double>(layout.columns) *
         BitsOf(layout.type) / 8;
}

// The engine gets row-major factors X and Y, transposed where they are column major.
double Multiplying(const CpuWork& work, const HostCosts& costs, const EngineTimes& times) {
  const Problem& problem = work.problem;
  const bool a_is_column_major = problem.a.order == Order::kColumnMajor;
  const bool b_is_column_major = problem.b.order == Order::kColumnMajor;
  const int64_t least = work.is_biased ? ExtentGrid::kExtents[1] : 1;
  const int64_t m = std::max(problem.m, problem.n > 1 ? least : 1);
  const int64_t n = std::max(problem.n, least);
  const size_t x_is_transposed = work.is_swapped ? !b_is_column_major : a_is_column_major;
  const size_t y_is_transposed = work.is_swapped ? !a_is_column_major : b_is_column_major;
  const ExtentGrid& grid = times.grids[x_is_transposed][y_is_transposed];
  double seconds =
      work.is_swapped ? grid.Seconds(n, m, work.depth) : grid.Seconds(m, n, work.depth);
  if (work.is_biased) {
    const auto x_lines = static_cast<double>(work.is_swapped ? n : m);
    seconds += x_lines * static_cast<double>(work.depth) * times.biased[x_is_transposed];
  }
  const double bytes = BytesOfMatrix(problem.a) + BytesOfMatrix(problem.b);
  if (bytes > kCachedBytes && costs.memory_bytes_per_second > 0) {
    seconds = std::max(seconds, bytes / costs.memory_bytes_per_second);
  }
  return seconds;
}

MatrixSeconds SecondsOfMatrix(const CpuWork& work, const HostCosts& costs,
                              const EngineTimes& times) {
  MatrixSeconds seconds;
  const Problem& problem = work.problem;
  if (problem.has_product()) {
    seconds.preparing_a = Preparing(costs, problem.a, work.a_widened);
    seconds.preparing_b = Preparing(costs, problem.b, work.b_widened);
    seconds.multiplying = Multiplying(work, costs, times);
  }
  if (work.is_finished) {
    seconds.finishing = EpilogueSeconds(costs, problem, work.stored, work.type);
  }
  return seconds;
}

// How often an operand is prepared.
double Times(const MatrixLayout& operand, double batch) {
  return operand.batch_stride_bytes == 0 ? std::min(batch, 1.0) : batch;
}

}  // namespace

std::optional<double> PredictedSeconds(const CpuWork& work, const HostCosts& costs) {
  const EngineTimes* const times = Find(costs, work.engine);
  if (times == nullptr) return std::nullopt;
  const Problem& problem = work.problem;
  if (!problem.has_output()) return costs.launch;
  const MatrixSeconds one = SecondsOfMatrix(work, costs, *times);
  const auto batch = static_cast<double>(problem.batch);
  const double all = Times(problem.a, batch) * one.preparing_a +
                     Times(problem.b, batch) * one.preparing_b +
                     batch * (one.multiplying + one.finishing);
  // The largest matrices are shared by threads one after the other, small ones side by side.
  const bool is_shared = !IsTooSmallToShare(problem, 1);
  const bool is_side_by_side =
      !is_shared && work.is_independent && !IsTooSmallToShare(problem, problem.batch);
  if (costs.threads == 1 || (!is_shared && !is_side_by_side)) return costs.launch + all;
  const double shares = is_shared ? batch : 1;
  return costs.launch + shares * costs.share + all / costs.threads;
}

}  // namespace gemmd
