// SPDX-License-Identifier: Apache-2.0
//
// Elements of an f32 product whose sums are made in f64 (kernels/matrix/split_float.h).
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/device/epilogue/epilogue_alone.h"
#include "kernels/cuda/device/mma_parameters.h"
#include "kernels/kernel.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Makes the sums of the elements that `split` has marked, or of all if its `any` is null. It does
// so on `stream`, without waiting. The sums go to `sums` where that has memory; otherwise the
// elements of D that they make are written, of f32, f16 or bf16. Errors: Internal as CUDA reports
// it.
absl::Status LaunchExactSums(const GemmArgs& args, const SplitParameters& split,
                             const SumsInMemory& sums, CUstream_st* stream);

}  // namespace gemmd
