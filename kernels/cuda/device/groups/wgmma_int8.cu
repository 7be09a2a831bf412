// SPDX-License-Identifier: Apache-2.0
//
// wgmma with s8 and u8.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/wgmma.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWgmmaInt8>();

}  // namespace gemmd
