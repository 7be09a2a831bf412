// SPDX-License-Identifier: Apache-2.0
//
// mma with e4m3 and e5m2.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/small.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaFp8>();

}  // namespace gemmd
