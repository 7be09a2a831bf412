// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with s4 and u4.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMmaSparse && IsInteger(instruction.a) &&
         BitsOf(instruction.a) == 4;
}

}  // namespace

void AddSparseInt4(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
