// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels on the current GPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tests/gpu/kernel_runner.h"
#include "tests/gpu/report.h"

namespace gemmd {

// Where operands and results are kept on the GPU.
enum class Placement {
  kTogether,  // In one allocation, 256 bytes from each other: fast.
  kApart,     // Each in an allocation of exactly its size, for tools that watch accesses.
};

// It has a stream of its own. Errors: CUDA's.
absl::StatusOr<std::unique_ptr<KernelRunner>> MakeCudaRunner(Placement placement);

// The facts and the chip of the current GPU. The commit is left empty.
// Errors: FailedPrecondition where there is no GPU, or one that the tables do not know.
struct CudaGpu {
  GpuFacts facts;
  mma::Chip chip;
};
absl::StatusOr<CudaGpu> FindCudaGpu();

}  // namespace gemmd
