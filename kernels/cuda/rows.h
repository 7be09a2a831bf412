// SPDX-License-Identifier: Apache-2.0
//
// The kernels of GPUs as rows of the catalogue: everything but their code, which
// kernels/cuda/device/launch.h has where a CUDA toolkit built it.
#pragma once

#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace gemmd {

absl::Span<const Kernel> CudaKernels();

}  // namespace gemmd
