// SPDX-License-Identifier: Apache-2.0
//
// The GPUs of this machine as devices of the benchmark. One of two files has this: that of builds
// with a CUDA toolkit, or that of builds without, which know no GPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/device.h"

namespace gemmd::bench {

// Errors: FailedPrecondition where this build or this machine has no such GPU.
absl::StatusOr<std::unique_ptr<Device>> OpenGpu(int index);

}  // namespace gemmd::bench
