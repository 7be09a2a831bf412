// SPDX-License-Identifier: Apache-2.0
//
// wmma with f16.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/small.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kWmmaF16>();

}  // namespace gemmd
