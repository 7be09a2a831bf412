// SPDX-License-Identifier: Apache-2.0
//
// wgmma with tf32.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/wgmma.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWgmmaTf32>();

}  // namespace gemmd
