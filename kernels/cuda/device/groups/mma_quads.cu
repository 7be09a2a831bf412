// SPDX-License-Identifier: Apache-2.0
//
// mma.m8n8k4 with f16, four products at once.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/small.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kMmaQuads>();

}  // namespace gemmd
