// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "kernels/cuda/device/runtime.h"
#include "kernels/matrix/status.h"
#include "tests/server/worker/cuda/endless_loop.h"

namespace gemmd {
namespace {

// Volatile, so that the compiler does not remove a loop without effects.
__global__ void ReadUntilItChanges(const volatile int* word) {
  while (*word == 0) {
  }
}

}  // namespace

absl::Status RunEndlessLoop() {
  ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  ASSIGN_OR_RETURN(const DeviceBuffer word, DeviceBuffer::Allocate(sizeof(int)));
  RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(word.data(), 0, sizeof(int), stream.get()), "word of the loop"));
  ReadUntilItChanges<<<1, 1, 0, stream.get()>>>(reinterpret_cast<const int*>(word.data()));
  RETURN_IF_ERROR(CudaStatus(cudaGetLastError(), "launch of an endless loop"));
  return stream.Wait();
}

}  // namespace gemmd
