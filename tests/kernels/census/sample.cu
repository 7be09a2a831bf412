// SPDX-License-Identifier: Apache-2.0
//
// The code of the sampled rows.
#include "kernels/cuda/functions.h"
#include "kernels/cuda/mma.cuh"
#include "tests/kernels/census/sample.h"

namespace gemmd {

void AddSample(CudaFunctions& functions) { AddFunctions<IsSampled, MmaFunction>(functions); }

}  // namespace gemmd
