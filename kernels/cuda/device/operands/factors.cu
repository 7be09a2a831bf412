// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/factors.h"
#include "kernels/matrix/block_scale.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

// The factors of one operand.
struct FactorJob {
  const std::byte* source;  // Null: every factor is 1.
  float* target;
  FactorType type;
  int64_t extent;          // Rows of A or columns of B.
  int64_t lines_of_block;  // At most `extent`.
  int64_t lines;           // Of the target, for each promotion.
  int64_t promotions;
  int64_t promotions_of_block;
  int64_t blocks_of_line;  // Along k.
  int64_t matrices;
  int64_t source_of_matrix;  // Bytes.
};

// Max promotions of a thread, whose factors are neighbours in the source.
constexpr int64_t kRun = 16;

__device__ float FactorAt(const FactorJob& job, const std::byte* matrix, int64_t at) {
  if (job.type == FactorType::kF32) return reinterpret_cast<const float*>(matrix)[at];
  return DecodeFactorCode(job.type, static_cast<uint32_t>(matrix[at]));
}

// Neighbouring threads write neighbouring lines.
__device__ void LayOut(const FactorJob& job, int64_t runs) {
  const int64_t of_matrix = runs * job.lines;
  const int64_t stride = int64_t{gridDim.x} * kBlockThreads;
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < of_matrix * job.matrices;
       i += stride) {
    const int64_t matrix = i / of_matrix;
    const int64_t first = i % of_matrix / job.lines * kRun;
    const int64_t last = min(first + kRun, job.promotions);
    const int64_t line = i % job.lines;
    float* const target = job.target + matrix * job.promotions * job.lines + line;
    if (job.source == nullptr) {
      for (int64_t k = first; k < last; ++k) target[k * job.lines] = 1;
      continue;
    }
    // Lines beyond the matrix get the factors of its last one.
    const int64_t block = min(line, job.extent - 1) / job.lines_of_block * job.blocks_of_line;
    const std::byte* const source = job.source + matrix * job.source_of_matrix;
    int64_t along = first / job.promotions_of_block;
    int64_t left = (along + 1) * job.promotions_of_block - first;
    for (int64_t k = first; k < last; ++k, --left) {
      if (left == 0) {
        ++along;
        left = job.promotions_of_block;
      }
      target[k * job.lines] = FactorAt(job, source, block + along);
    }
  }
}

// Blocks of the grid's first row take A, those of the second B.
__global__ void __launch_bounds__(kBlockThreads)
    FactorKernel(const __grid_constant__ FactorJob a, const __grid_constant__ FactorJob b,
                 int64_t runs) {
  LayOut(blockIdx.y == 0 ? a : b, runs);
}

FactorJob JobOf(const BlockScale* blocks, const FactorPlan& plan, const FactorPlan::Lines& lines,
                int64_t extent, int64_t k, const std::byte* source, std::byte* made) {
  const BlockScale of = blocks != nullptr ? *blocks : BlockScale{.depth = plan.promotion_k};
  return {.source = blocks != nullptr ? source : nullptr,
          .target = reinterpret_cast<float*>(made + lines.offset),
          .type = of.type,
          .extent = extent,
          .lines_of_block = std::min(of.lines, extent),
          .lines = lines.lines,
          .promotions = plan.promotions,
          .promotions_of_block = of.depth / plan.promotion_k,
          .blocks_of_line = of.depth_blocks(k),
          .matrices = lines.matrices,
          .source_of_matrix = of.matrix_bytes(extent, k)};
}

}  // namespace

absl::Status LayOutFactors(const Problem& problem, const FactorPlan& plan, const std::byte* a,
                           const std::byte* b, std::byte* made, CUstream_st* stream) {
  const FactorJob of_a = JobOf(problem.blocks_of_a(), plan, plan.a, problem.m, problem.k, a, made);
  const FactorJob of_b = JobOf(problem.blocks_of_b(), plan, plan.b, problem.n, problem.k, b, made);
  const int64_t runs = (plan.promotions + kRun - 1) / kRun;
  const int64_t most =
      runs * std::max(plan.a.lines * plan.a.matrices, plan.b.lines * plan.b.matrices);
  FactorKernel<<<dim3(BlocksOfThreads(most), 2), kBlockThreads, 0, stream>>>(of_a, of_b, runs);
  return LaunchStatus("factors");
}

}  // namespace gemmd
