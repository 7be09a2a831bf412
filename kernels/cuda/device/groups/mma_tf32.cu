// SPDX-License-Identifier: Apache-2.0
//
// mma with tf32.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/mma_tf32.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaTf32>();

}  // namespace gemmd
