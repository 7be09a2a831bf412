// SPDX-License-Identifier: Apache-2.0
//
// The code of the sampled rows.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"
#include "tests/kernels/census/sample.h"

namespace gemmd {

void AddSample(CudaFunctions& functions) { AddFunctions<IsSampled, MmaFunction>(functions); }

}  // namespace gemmd
