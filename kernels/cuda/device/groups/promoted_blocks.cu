// SPDX-License-Identifier: Apache-2.0
//
// Promoted sums that are multiplied by factors of blocks.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/promoted.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kPromoted, Across::kNone, true>();

}  // namespace gemmd
