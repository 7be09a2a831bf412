// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with any float type of at most 8 bits, in bytes (kind::f8f6f4), and with e4m3 and e5m2
// where the sums are f16.
#include "kernels/cuda/device/mainloop/group.cuh"
#include "kernels/cuda/groups/small.h"

namespace gemmd {

template std::span<const CudaFunction> FunctionsOf<CudaGroup::kSparseNarrow>();

}  // namespace gemmd
