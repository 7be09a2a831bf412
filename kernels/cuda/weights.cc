// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/weights.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/prediction.h"
#include "kernels/cuda/warp_work.h"

namespace gemmd {
namespace {

bool FitsChunks(const BlockScale* blocks) {
  return blocks == nullptr || blocks->depth % kWeightDepth == 0;
}

// Lines of k elements without gaps.
MatrixLayout LinesAlongK(MatrixLayout layout, mma::Operand operand, ElementType type) {
  layout.type = type;
  layout.order = operand == mma::Operand::kA ? Order::kRowMajor : Order::kColumnMajor;
  layout.leading_dimension = layout.line_length();
  layout.batch_stride_bytes = layout.lines() * layout.line_stride_bytes();
  return layout;
}

}  // namespace

WeightsPlan WeightsPlanOf(int64_t lines, int64_t k) {
  WeightsPlan plan;
  plan.lines = lines;
  plan.tiles = lines / kWeightLines + (lines % kWeightLines != 0 ? 1 : 0);
  const int64_t chunks = k / kWeightDepth;
  plan.chunks = chunks + chunks % kWeightChunks;
  return plan;
}

std::optional<WeightsMultiplication> WeightsMultiplicationOf(const CudaRow& row,
                                                             const Problem& problem) {
  const ElementType type = row.instruction.a;
  const bool is_right_row = IsNarrow(row) && row.instruction.b == type && !row.splits_f32 &&
                            DequantizedType(problem) == type;
  if (!is_right_row || problem.batch != 1) return std::nullopt;
  if (!problem.has_output() || !problem.has_product()) return std::nullopt;
  const bool is_a = problem.b.type == type;
  const MatrixLayout& quantized = is_a ? problem.a : problem.b;
  const bool is_one = (is_a ? problem.a.type : problem.b.type) != type;
  const bool fits = is_one && quantized.type == ElementType::kS4 && problem.k % kWeightDepth == 0 &&
                    FitsChunks(problem.blocks_of_a()) && FitsChunks(problem.blocks_of_b());
  if (!fits || (!is_a && problem.a.is_sparse())) return std::nullopt;

  WeightsMultiplication made;
  made.weights = is_a ? mma::Operand::kA : mma::Operand::kB;
  const int64_t lines = is_a ? problem.m : problem.n;
  // So sizes in bytes, and those of the same lines in 16 bits, are far from 2^63.
  constexpr int64_t kMaxElements = int64_t{1} << 56;
  if (problem.k > kMaxElements / std::max<int64_t>(lines, 1)) return std::nullopt;
  made.plan = WeightsPlanOf(lines, problem.k);

  Problem& dequantized = made.dequantized;
  dequantized = problem;
  (is_a ? dequantized.a : dequantized.b) = LinesAlongK(quantized, made.weights, type);
  (is_a ? dequantized.a_scale : dequantized.b_scale) =
      (is_a ? problem.a_scale : problem.b_scale) == ScaleKind::kBlocks
          ? ScaleKind::kNone
          : (is_a ? problem.a_scale : problem.b_scale);
  (is_a ? dequantized.a_stays : dequantized.b_stays) = false;
  made.multiplication = MultiplicationOf(row, dequantized);
  const bool are_weights_first = made.multiplication.is_transposed != is_a;
  if (!are_weights_first || made.multiplication.row.across != Across::kNone) return std::nullopt;
  return made;
}

double PredictedWeightsSeconds(const CudaRow& row, const Problem& problem,
                               const DeviceProfile& profile) {
  // On an H200: products of 1 to 64 rows by weights of 8192 x 28672.
  constexpr double kShareOfBandwidth = 0.85;
  constexpr double kChunkSeconds = 1e-7;
  const std::optional<WeightsMultiplication> made = WeightsMultiplicationOf(row, problem);
  if (!made) return 0;
  const Problem& multiplied = made->multiplication.problem;
  const auto columns = static_cast<double>(multiplied.n);
  const double tiles = static_cast<double>(made->plan.tiles) * std::ceil(columns / row.tile.n);
  const double at_once = std::max(1, profile.target.multiprocessors) * BlocksOfWeights(row);
  const double chunks = std::ceil(tiles / at_once) * static_cast<double>(made->plan.chunks);
  const double bytes = static_cast<double>(made->plan.bytes()) +
                       columns * static_cast<double>(problem.k) * 2 +
                       static_cast<double>(BytesWritten(problem));
  const double bandwidth = kShareOfBandwidth * profile.memory_bytes_per_second;
  return kLaunchSeconds + std::max(bandwidth > 0 ? bytes / bandwidth : 0, chunks * kChunkSeconds);
}

}  // namespace gemmd
