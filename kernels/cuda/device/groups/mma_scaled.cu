// SPDX-License-Identifier: Apache-2.0
//
// mma with factors of blocks along k (kinds mxf8f6f4, mxf4, mxf4nvf4).
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/small.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaScaled>();

}  // namespace gemmd
