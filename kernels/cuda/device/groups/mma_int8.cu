// SPDX-License-Identifier: Apache-2.0
//
// mma with s8 and u8.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMma && IsInteger(instruction.a) &&
         BitsOf(instruction.a) == 8;
}

}  // namespace

void AddMmaInt8(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
