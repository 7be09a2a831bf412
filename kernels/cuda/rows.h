// SPDX-License-Identifier: Apache-2.0
//
// The GPU kernels as rows of the catalogue: everything except their code, which builds with a CUDA
// toolkit launch through kernels/cuda/device/launch.h.
#pragma once

#include <optional>

#include "absl/types/span.h"
#include "kernels/cuda/row.h"
#include "kernels/kernel.h"

namespace gemmd {

absl::Span<const Kernel> CudaKernels();

// The row of a kernel of this family; null for a kernel of another family.
const CudaRow* CudaRowOf(const Kernel& kernel);

// The row for the transpose of a problem of `row`: the same, or the row with the types of A and B
// swapped. Nothing if there is none.
std::optional<CudaRow> RowOfTranspose(CudaRow row);

}  // namespace gemmd
