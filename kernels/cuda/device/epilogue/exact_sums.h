// SPDX-License-Identifier: Apache-2.0
//
// Computes elements of an f32 product with sums in f64 (kernels/matrix/split_float.h).
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/device/epilogue/epilogue_alone.h"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/kernel.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Computes the sums of the elements that `split` marks, or of all elements if its `any` is null, on
// `stream`, without waiting. Writes them to `sums` if that has memory; otherwise writes the
// resulting elements of D, which is f32, f16 or bf16. Errors: Internal as CUDA reports it.
absl::Status LaunchExactSums(const GemmArgs& args, const SplitParameters& split,
                             const SumsInMemory& sums, CUstream_st* stream);

}  // namespace gemmd
