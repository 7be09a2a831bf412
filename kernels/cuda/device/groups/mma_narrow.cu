// SPDX-License-Identifier: Apache-2.0
//
// mma with any float type of at most 8 bits, in bytes (kind::f8f6f4).
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/small.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaNarrow>();

}  // namespace gemmd
