// SPDX-License-Identifier: Apache-2.0
//
// The code of the kernels: the GPU function of each row of a group. Each source file of groups/ has
// one group, so that groups compile in parallel.
#pragma once

#include <span>

#include "kernels/cuda/group.h"
#include "kernels/cuda/row.h"

namespace gemmd {

struct CudaFunction {
  CudaRow row;
  const void* function = nullptr;  // Null if no chip of this build runs the row.
};

// The functions are in the order of the table; with `kAcross`, those of the group's rows that can
// read across k, with `kScalesSums`, those that can multiply promoted sums by factors of blocks. A
// group without a source file does not link.
template <CudaGroup kGroup, Across kAcross = Across::kNone, bool kScalesSums = false>
std::span<const CudaFunction> FunctionsOf();

}  // namespace gemmd
