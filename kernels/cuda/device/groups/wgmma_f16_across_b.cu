// SPDX-License-Identifier: Apache-2.0
//
// wgmma with f16 and bf16, if B lies across k.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/wgmma.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWgmmaF16, Across::kB>();

}  // namespace gemmd
