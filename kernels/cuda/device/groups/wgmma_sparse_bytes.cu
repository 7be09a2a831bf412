// SPDX-License-Identifier: Apache-2.0
//
// wgmma.sp with e4m3, e5m2, s8 and u8.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/wgmma.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWgmmaSparseBytes>();

}  // namespace gemmd
