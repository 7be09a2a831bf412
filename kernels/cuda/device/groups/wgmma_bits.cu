// SPDX-License-Identifier: Apache-2.0
//
// wgmma with b1: no rows yet.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/wgmma.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWgmmaBits>();

}  // namespace gemmd
