// SPDX-License-Identifier: Apache-2.0
//
// wmma with every type but f16.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/small.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWmmaOthers>();

}  // namespace gemmd
