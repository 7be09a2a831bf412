// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/grid.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/pack_jobs.h"
#include "kernels/status_macros.h"

namespace gemmd {
namespace {

constexpr int kWordsOfThread = 4;
constexpr int64_t kMostExtent = 65535;  // Of a grid's second and third.

// Blocks beside each other share the words of a tile of rows.
__global__ void __launch_bounds__(kBlockThreads)
    MetadataKernel(const __grid_constant__ MetadataJob job) {
  const int64_t words = job.steps * kLanes;
  MetadataPlace place;
  for (place.matrix = blockIdx.z; place.matrix < job.batch; place.matrix += gridDim.z) {
    for (place.tile = blockIdx.y; place.tile < job.tiles; place.tile += gridDim.y) {
      uint32_t* const target = job.words + (place.matrix * job.tiles + place.tile) * words;
      for (int64_t word = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; word < words;
           word += int64_t{gridDim.x} * kBlockThreads) {
        place.step = word / kLanes;
        target[word] = WordAt(job, place, static_cast<int>(word % kLanes));
      }
    }
  }
}

}  // namespace

absl::Status RepackMetadata(const CudaRow& row, const Problem& problem, const CudaPlan& plan,
                            const std::byte* a, std::byte* workspace, CUstream_st* stream) {
  ASSIGN_OR_RETURN(const MetadataJob job, MetadataJobOf(row, problem, plan, a, workspace));
  const dim3 blocks(BlocksFor(CeilOf(job.steps * kLanes, kBlockThreads * kWordsOfThread)),
                    static_cast<unsigned>(std::min(job.tiles, kMostExtent)),
                    static_cast<unsigned>(std::min(job.batch, kMostExtent)));
  MetadataKernel<<<blocks, kBlockThreads, 0, stream>>>(job);
  return LaunchStatus("metadata");
}

}  // namespace gemmd
