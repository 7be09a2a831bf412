// SPDX-License-Identifier: Apache-2.0
//
// Packs quantized weights, and finds the kernels that multiply them (kernels/cuda/weights.h).
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/cuda/weights.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Packs the weights of the problem, an operand as given, on `stream`, without waiting. f32 factors
// are aligned to 4 bytes, `made` to 256. Errors: Internal as CUDA reports it.
absl::Status PackWeights(const Problem& problem, mma::Operand operand, const WeightsPlan& plan,
                         const std::byte* source, const std::byte* factors, std::byte* made,
                         CUstream_st* stream);

// The argument of the kernels.
struct WeightsParameters {
  MmaParameters product;  // `a` and `a_map` are not used.
  const std::byte* weights;
  int64_t bytes_of_tile;
  int stages;  // Of a tile.
};

// The kernel of a row for weights, on the current GPU.
struct WeightsKernel {
  const void* function = nullptr;
  int threads = 0;
  int shared_bytes = 0;
  int blocks_of_multiprocessor = 0;
};
// Errors: FailedPrecondition if this build has no such code.
absl::StatusOr<WeightsKernel> WeightsKernelOf(const CudaRow& row);

}  // namespace gemmd
