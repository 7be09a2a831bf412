// SPDX-License-Identifier: Apache-2.0
//
// wmma with f16.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kWmma && instruction.a == ElementType::kF16;
}

}  // namespace

void AddWmmaF16(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
