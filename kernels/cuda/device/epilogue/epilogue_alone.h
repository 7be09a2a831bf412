// SPDX-License-Identifier: Apache-2.0
//
// Problems without a product, where k or alpha is 0: the epilogue is applied to zeros.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Writes D on `stream`, without waiting. `args` is as for LaunchOnStream (launch.h); `accumulators`
// is the type that the kernel would have: f32, f64 or s32.
// Errors: Internal as CUDA reports it.
absl::Status LaunchEpilogueAlone(const GemmArgs& args, ElementType accumulators,
                                 CUstream_st* stream);

}  // namespace gemmd
