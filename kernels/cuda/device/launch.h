// SPDX-License-Identifier: Apache-2.0
//
// Launches kernels of the catalogue on a GPU. Built with a CUDA toolkit only.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Puts everything that the product takes (packing of operands, the kernel) on `stream`, without
// waiting. The scheduler of the GPU sees one kernel for most problems.
//
// `args` as for any launch, but that all of its pointers are to memory of the current GPU; a, b, c,
// bias and d are aligned to 256 bytes, as is the workspace.
// Errors:   FailedPrecondition for a kernel that this build has no code for; ResourceExhausted and
//           Internal as CUDA says.
// Threads:  any.
absl::Status LaunchOnStream(const Kernel& kernel, const GemmArgs& args, CUstream_st* stream);

// Whether this build has the code of the kernel, for the current GPU.
bool HasCode(const Kernel& kernel);

}  // namespace gemmd
