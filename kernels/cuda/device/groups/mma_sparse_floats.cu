// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with f16, bf16, tf32, e4m3 and e5m2.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/mma_sparse_floats.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kSparseFloats>();

}  // namespace gemmd
