// SPDX-License-Identifier: Apache-2.0
//
// wgmma with f16, for split f32.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/split.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kSplit>();

}  // namespace gemmd
