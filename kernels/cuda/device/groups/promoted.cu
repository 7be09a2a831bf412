// SPDX-License-Identifier: Apache-2.0
//
// All instructions with e4m3 and e5m2 whose sums are promoted.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/promoted.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kPromoted>();

}  // namespace gemmd
