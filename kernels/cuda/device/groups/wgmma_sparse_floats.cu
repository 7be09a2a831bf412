// SPDX-License-Identifier: Apache-2.0
//
// wgmma.sp with f16, bf16 and tf32.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/wgmma.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWgmmaSparseFloats>();

}  // namespace gemmd
