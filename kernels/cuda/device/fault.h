// SPDX-License-Identifier: Apache-2.0
//
// Kernels that do harm, for tests of what becomes of the others.
#pragma once

#include "absl/status/status.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd {

// Writes where there is no memory: the context is lost once the kernel has run.
absl::Status LaunchIllegalAccess(CUstream_st* stream);

// Runs until its process ends.
absl::Status LaunchEndlessLoop(CUstream_st* stream);

}  // namespace gemmd
