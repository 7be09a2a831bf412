// SPDX-License-Identifier: Apache-2.0
//
// wgmma with e4m3 and e5m2.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/wgmma.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWgmmaFp8>();

}  // namespace gemmd
