// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/weights.h"
#include "kernels/matrix/element_codes.h"

namespace gemmd {
namespace {

struct WeightsJob {
  const std::byte* source = nullptr;
  const std::byte* factors = nullptr;  // Null: none.
  std::byte* target = nullptr;
  bool lies_along = false;  // Lines of the source run along k.
  int64_t line_stride = 0;  // Of the source, in bytes.
  int64_t lines = 0;
  int64_t depth = 0;  // k.
  FactorType factor_type = FactorType::kF32;
  int64_t lines_of_block = 1;
  int64_t depth_of_block = 1;
  int64_t blocks_of_line = 0;
  int64_t chunks = 0;
  int64_t pieces = 0;  // Chunks of all tiles.
};

// The code of an element, or of zero beyond the weights, with its sign bit inverted.
__device__ uint32_t CodeAt(const WeightsJob& job, int64_t line, int64_t element) {
  constexpr uint32_t kSign = 8;
  if (line >= job.lines || element >= job.depth) return kSign;
  const std::byte* const from = job.source + (job.lies_along ? line : element) * job.line_stride;
  const uint64_t code = LoadCode<4>(from, job.lies_along ? element : line);
  return (static_cast<uint32_t>(code) & 15) ^ kSign;
}

__device__ float FactorAt(const WeightsJob& job, int64_t line, int64_t element) {
  if (job.factors == nullptr || line >= job.lines || element >= job.depth) return 1;
  const int64_t at = line / job.lines_of_block * job.blocks_of_line + element / job.depth_of_block;
  if (job.factor_type == FactorType::kF32) return reinterpret_cast<const float*>(job.factors)[at];
  return DecodeFactorCode(job.factor_type, static_cast<uint32_t>(job.factors[at]));
}

// A block packs one chunk after the other.
__global__ void __launch_bounds__(kWeightThreads)
    PackKernel(const __grid_constant__ WeightsJob job) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t piece = blockIdx.x; piece < job.pieces; piece += gridDim.x) {
    const int64_t first_line = piece / job.chunks * kWeightLines;
    const int64_t first_element = piece % job.chunks * kWeightDepth;
    std::byte* const chunk = job.target + piece * kWeightChunkBytes;
    if (thread < kWeightLines) {
      reinterpret_cast<float*>(chunk)[thread] = FactorAt(job, first_line + thread, first_element);
    }
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < kWeightCodes; ++i) {
      const WeightPosition at = PositionOfWeight(thread, i);
      const uint32_t code = CodeAt(job, first_line + at.line, first_element + at.element);
      words[BitOfWeight(i) / 32] |= code << BitOfWeight(i) % 32;
    }
    reinterpret_cast<uint4*>(chunk + kWeightFactorBytes)[thread] =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace

absl::Status PackWeights(const Problem& problem, mma::Operand operand, const WeightsPlan& plan,
                         const std::byte* source, const std::byte* factors, std::byte* made,
                         CUstream_st* stream) {
  const bool is_a = operand == mma::Operand::kA;
  const MatrixLayout& layout = is_a ? problem.a : problem.b;
  WeightsJob job = {.source = source,
                    .target = made,
                    .lies_along = AxisInMemory(operand, layout) == LineAxis::kK,
                    .line_stride = layout.line_stride_bytes(),
                    .lines = plan.lines,
                    .depth = problem.k,
                    .chunks = plan.chunks,
                    .pieces = plan.tiles * plan.chunks};
  if (const BlockScale* const blocks = is_a ? problem.blocks_of_a() : problem.blocks_of_b()) {
    job.factors = factors;
    job.factor_type = blocks->type;
    job.lines_of_block = blocks->lines;
    job.depth_of_block = blocks->depth;
    job.blocks_of_line = blocks->depth_blocks(problem.k);
  }
  PackKernel<<<BlocksFor(job.pieces), kWeightThreads, 0, stream>>>(job);
  return LaunchStatus("pack weights");
}

}  // namespace gemmd
