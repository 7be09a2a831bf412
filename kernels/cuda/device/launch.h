// SPDX-License-Identifier: Apache-2.0
//
// Launches kernels of the catalogue on a GPU. Only builds with a CUDA toolkit have this.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Enqueues the product (packing of operands, the kernel) on `stream`, without waiting. For most
// problems that is one kernel.
//
// `args` is as for any launch, except that all of its pointers point to memory of the current GPU;
// a, b, c, bias, d and the workspace are aligned to 256 bytes. Errors: FailedPrecondition if this
// build lacks the kernel's code; ResourceExhausted and Internal as
// CUDA reports them.
// Threads: any.
absl::Status LaunchOnStream(const Kernel& kernel, const GemmArgs& args, CUstream_st* stream);

// Whether this build has code of the kernel for the current GPU.
bool HasCode(const Kernel& kernel);

}  // namespace gemmd
