// SPDX-License-Identifier: Apache-2.0
//
// mma with f16 and bf16.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/mma_f16.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaF16>();

}  // namespace gemmd
