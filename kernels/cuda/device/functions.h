// SPDX-License-Identifier: Apache-2.0
//
// The code of the kernels: the function on the GPU of each row of a group. Each source file of
// groups/ has one group, so that they build side by side.
#pragma once

#include <span>

#include "kernels/cuda/group.h"
#include "kernels/cuda/row.h"

namespace gemmd {

struct CudaFunction {
  CudaRow row;
  const void* function = nullptr;  // Null where none of the chips that the build is for runs it.
};

// In the order of the table. A group without a source file does not link.
template <CudaGroup kGroup>
std::span<const CudaFunction> FunctionsOf();

}  // namespace gemmd
