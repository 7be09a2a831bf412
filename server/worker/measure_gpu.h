// SPDX-License-Identifier: Apache-2.0
//
// How fast a GPU is: each kernel with every multiprocessor busy, its memory, and the way to it.
#pragma once

#include "server/worker/worker.h"

namespace gemmd {

// Takes a second or two: one product for each kernel that the GPU can run and that this build has
// code for. Kernels that there is no time for keep the rate 0, which says so.
//
// Errors: those of the runtime, but for launches that are refused.
absl::Status MeasureGpuRates(GpuRuntime& runtime, const GpuDescription& gpu,
                             absl::Span<std::byte> staging, GpuRates& rates);

}  // namespace gemmd
