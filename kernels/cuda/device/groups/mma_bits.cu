// SPDX-License-Identifier: Apache-2.0
//
// mma with b1.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/mma_bits.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaBits>();

}  // namespace gemmd
