// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/gather.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

using GatherList = std::array<ElementGather, kMaxGathers>;

__global__ void __launch_bounds__(kBlockThreads)
    GatherKernel(const __grid_constant__ GatherList list) {
  const ElementGather& gather = list.data()[blockIdx.y];
  const int64_t units = gather.units();
  const int64_t stride = int64_t{gridDim.x} * kBlockThreads;
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < units; i += stride) {
    GatherUnit(gather, i);
  }
}

}  // namespace

absl::Status GatherOnStream(absl::Span<const ElementGather> gathers, CUstream_st* stream) {
  if (gathers.size() > kMaxGathers) {
    return absl::InvalidArgumentError(
        GotWant("gathers", Concat(gathers.size()), Concat("at most ", kMaxGathers)));
  }
  int64_t max_units = 0;
  GatherList list;
  for (size_t i = 0; i < gathers.size(); ++i) {
    list[i] = gathers[i];
    max_units = std::max(max_units, gathers[i].units());
  }
  if (max_units == 0) return absl::OkStatus();
  const dim3 grid(BlocksOfThreads(max_units), static_cast<unsigned>(gathers.size()));
  GatherKernel<<<grid, kBlockThreads, 0, stream>>>(list);
  return LaunchStatus("gather");
}

}  // namespace gemmd
