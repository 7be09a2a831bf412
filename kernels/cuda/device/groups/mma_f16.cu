// SPDX-License-Identifier: Apache-2.0
//
// mma with f16 and bf16.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMma && instruction.products() == 1 &&
         BitsOf(instruction.a) == 16;
}

}  // namespace

void AddMmaF16(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
