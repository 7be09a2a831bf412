// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with factors of blocks along k (kinds mxf8f6f4, mxf4, mxf4nvf4).
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMmaSparse && instruction.scales > 0;
}

}  // namespace

void AddSparseScaled(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
