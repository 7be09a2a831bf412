// SPDX-License-Identifier: Apache-2.0
//
// mma with s8 and u8.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/mma_int8.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaInt8>();

}  // namespace gemmd
