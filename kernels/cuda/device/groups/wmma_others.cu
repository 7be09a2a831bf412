// SPDX-License-Identifier: Apache-2.0
//
// wmma with every other type.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kWmma && instruction.a != ElementType::kF16;
}

}  // namespace

void AddWmmaOthers(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
