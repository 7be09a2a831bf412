// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with s8 and u8.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/mma_sparse_int8.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kSparseInt8>();

}  // namespace gemmd
