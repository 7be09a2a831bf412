// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device/grid.h"
#include "kernels/cuda/device/operands/copy_parts.h"

namespace gemmd {
namespace {

// Bytes that a block of threads copies at once if everything is aligned.
constexpr int64_t kStrideBytes = int64_t{kBlockThreads} * sizeof(uint4);
// Blocks for one part; there are many parts.
constexpr int64_t kMaxBlocksOfPart = 64;

template <typename Word>
__device__ void CopyWords(const CopiedPart& part) {
  const auto* const from = reinterpret_cast<const Word*>(part.from);
  auto* const to = reinterpret_cast<Word*>(part.to);
  const int64_t words = part.bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t stride = int64_t{gridDim.y} * kBlockThreads;
  for (int64_t i = int64_t{blockIdx.y} * kBlockThreads + threadIdx.x; i < words; i += stride) {
    to[i] = from[i];
  }
}

__global__ void __launch_bounds__(kBlockThreads) CopyPartsKernel(const CopiedPart* parts) {
  const CopiedPart part = parts[blockIdx.x];
  const uint64_t all = reinterpret_cast<uint64_t>(part.from) | reinterpret_cast<uint64_t>(part.to) |
                       static_cast<uint64_t>(part.bytes);
  if (all % sizeof(uint4) == 0) {
    CopyWords<uint4>(part);
  } else if (all % sizeof(uint32_t) == 0) {
    CopyWords<uint32_t>(part);
  } else {
    CopyWords<uint8_t>(part);
  }
}

}  // namespace

absl::Status CopyPartsOnStream(const CopiedPart* parts, int64_t count, int64_t max_bytes,
                               CUstream_st* stream) {
  if (count == 0 || max_bytes == 0) return absl::OkStatus();
  const int64_t blocks =
      std::clamp<int64_t>((max_bytes - 1) / kStrideBytes + 1, 1, kMaxBlocksOfPart);
  const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>(blocks));
  CopyPartsKernel<<<grid, kBlockThreads, 0, stream>>>(parts);
  return LaunchStatus("copy of parts");
}

}  // namespace gemmd
