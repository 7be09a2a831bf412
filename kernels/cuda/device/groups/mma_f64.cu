// SPDX-License-Identifier: Apache-2.0
//
// mma with f64.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/mma_f64.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaF64>();

}  // namespace gemmd
