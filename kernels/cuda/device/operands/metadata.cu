// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/metadata.h"
#include "kernels/cuda/operands/pack_jobs.h"
#include "kernels/matrix/status.h"

namespace gemmd {
namespace {

constexpr int kWordsOfThread = 8;
constexpr int kAtOnce = 4;
constexpr int64_t kMaxExtent = 65535;  // Max blocks along a grid's second or third axis.

// Neighbouring blocks share the words of a tile of rows. A thread's words all belong to one lane;
// several are in flight at a time.
__global__ void __launch_bounds__(kBlockThreads)
    MetadataKernel(const __grid_constant__ MetadataJob job) {
  static_assert(kBlockThreads % kLanes == 0);
  constexpr int kStepsOfBlock = kBlockThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t first = int64_t{blockIdx.x} * kStepsOfBlock + threadIdx.x / kLanes;
  const int64_t stride = int64_t{gridDim.x} * kStepsOfBlock;
  for (int64_t matrix = blockIdx.z; matrix < job.batch; matrix += gridDim.z) {
    for (int64_t tile = blockIdx.y; tile < job.tiles; tile += gridDim.y) {
      const LaneOfTile at = LaneOfTileOf(job, matrix, tile, lane);
      uint32_t* const words = WordsOfTile(job, matrix, tile);
      int64_t step = first;
      // Words are loaded before any is stored: the compiler must assume that a store changes later
      // loads.
      for (; step + (kAtOnce - 1) * stride < at.steps_of_bytes; step += kAtOnce * stride) {
        uint32_t loaded[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          loaded[i] = WordOfIndexBytes(job, at, step + i * stride);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          words[PlaceOfWord(job, step + i * stride, lane)] = loaded[i];
        }
      }
#pragma unroll 1
      for (; step < job.steps; step += stride) {
        words[PlaceOfWord(job, step, lane)] = WordOfStep(job, at, step);
      }
    }
  }
}

}  // namespace

absl::Status RepackMetadata(const CudaRow& row, const Problem& problem, const CudaPlan& plan,
                            const std::byte* a, std::byte* made, CUstream_st* stream) {
  ASSIGN_OR_RETURN(const MetadataJob job, MetadataJobOf(row, problem, plan, a, made));
  const dim3 blocks(BlocksFor(CeilOf(job.steps * kLanes, kBlockThreads * kWordsOfThread)),
                    static_cast<unsigned>(std::min(job.tiles, kMaxExtent)),
                    static_cast<unsigned>(std::min(job.batch, kMaxExtent)));
  MetadataKernel<<<blocks, kBlockThreads, 0, stream>>>(job);
  return LaunchStatus("metadata");
}

}  // namespace gemmd
