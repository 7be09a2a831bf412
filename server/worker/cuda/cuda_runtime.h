// SPDX-License-Identifier: Apache-2.0
//
// GpuRuntime over CUDA.
#pragma once

#include <memory>

#include "server/worker/gpu_runtime.h"

namespace gemmd {

std::unique_ptr<GpuRuntime> MakeCudaRuntime();

}  // namespace gemmd
