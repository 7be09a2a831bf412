// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/grid.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/pack_jobs.h"
#include "kernels/status_macros.h"

namespace gemmd {
namespace {

constexpr int kWarps = kBlockThreads / kLanes;

// A warp makes the 32 words of one tile and step at a time.
__global__ void __launch_bounds__(kBlockThreads)
    MetadataKernel(const __grid_constant__ MetadataJob job, int64_t places) {
  __shared__ uint32_t staged[kWarps][kLanes];
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int pairs = PairsOf(job.instruction);
  for (int64_t index = int64_t{blockIdx.x} * kWarps + warp; index < places;
       index += int64_t{gridDim.x} * kWarps) {
    const MetadataPlace place = MetadataPlaceOf(job, index);
    staged[warp][lane] = 0;
    __syncwarp();
    for (int pair = lane; pair < pairs; pair += kLanes) {
      const PlacedNibble nibble = NibbleAt(job, place, pair);
      atomicOr(&staged[warp][nibble.lane], nibble.bits);
    }
    __syncwarp();
    job.words[index * kLanes + lane] = staged[warp][lane];
  }
}

}  // namespace

absl::Status RepackMetadata(const CudaRow& row, const Problem& problem, const CudaPlan& plan,
                            const std::byte* a, std::byte* workspace, CUstream_st* stream) {
  ASSIGN_OR_RETURN(const MetadataJob job, MetadataJobOf(row, problem, plan, a, workspace));
  const int64_t places = job.tiles * job.steps * job.batch;
  MetadataKernel<<<BlocksFor(CeilOf(places, kWarps)), kBlockThreads, 0, stream>>>(job, places);
  return LaunchStatus("metadata");
}

}  // namespace gemmd
