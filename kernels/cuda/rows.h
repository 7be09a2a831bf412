// SPDX-License-Identifier: Apache-2.0
//
// The GPU kernels as rows of the catalogue: everything but their code, which a build with a CUDA
// toolkit launches by kernels/cuda/device/launch.h.
#pragma once

#include "absl/types/span.h"
#include "kernels/cuda/row.h"
#include "kernels/kernel.h"

namespace gemmd {

absl::Span<const Kernel> CudaKernels();

// The row of a kernel of this family; null for a kernel of another family.
const CudaRow* CudaRowOf(const Kernel& kernel);

// The row that multiplies transposes as `row` multiplies the problem: `row` itself, or the one that
// takes the types of A and B the other way round. Null if there is none.
const CudaRow* RowOfTranspose(const CudaRow& row);

}  // namespace gemmd
