// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "kernels/cuda/device/fault.h"
#include "kernels/cuda/device/runtime.h"

namespace gemmd {
namespace {

// Volatile, so that the compiler leaves them in: an access and a loop without any effect.
__global__ void WriteTo(volatile int* address) { *address = 1; }

__global__ void ReadUntilItChanges(const volatile int* word) {
  while (*word == 0) {
  }
}

}  // namespace

absl::Status LaunchIllegalAccess(CUstream_st* stream) {
  WriteTo<<<1, 1, 0, stream>>>(reinterpret_cast<volatile int*>(uintptr_t{64}));
  return CudaStatus(cudaGetLastError(), "launch of an illegal access");
}

absl::Status LaunchEndlessLoop(CUstream_st* stream) {
  int* word = nullptr;  // Never freed: the loop reads it.
  const absl::Status allocated = CudaStatus(cudaMalloc(&word, sizeof(int)), "word of the loop");
  if (!allocated.ok()) return allocated;
  const absl::Status cleared =
      CudaStatus(cudaMemsetAsync(word, 0, sizeof(int), stream), "word of the loop");
  if (!cleared.ok()) return cleared;
  ReadUntilItChanges<<<1, 1, 0, stream>>>(word);
  return CudaStatus(cudaGetLastError(), "launch of an endless loop");
}

}  // namespace gemmd
