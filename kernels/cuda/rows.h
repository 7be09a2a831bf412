// SPDX-License-Identifier: Apache-2.0
//
// The kernels of GPUs as rows of the catalogue: everything but their code, which
// kernels/cuda/device/launch.h has where a CUDA toolkit built it.
#pragma once

#include "absl/types/span.h"
#include "kernels/cuda/row.h"
#include "kernels/kernel.h"

namespace gemmd {

absl::Span<const Kernel> CudaKernels();

// The row of a kernel of this family; null for a kernel of another one.
const CudaRow* CudaRowOf(const Kernel& kernel);

}  // namespace gemmd
