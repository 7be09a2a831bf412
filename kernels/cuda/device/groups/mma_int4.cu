// SPDX-License-Identifier: Apache-2.0
//
// mma with s4 and u4.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/small.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaInt4>();

}  // namespace gemmd
