// SPDX-License-Identifier: Apache-2.0
//
// In place of the instructions that came with Blackwell, where a build is for no such chip.
#include "kernels/cuda/device/functions.h"

namespace gemmd {

void AddMmaNarrow(CudaFunctions&) {}
void AddMmaScaled(CudaFunctions&) {}
void AddSparseNarrow(CudaFunctions&) {}
void AddSparseScaled(CudaFunctions&) {}

}  // namespace gemmd
