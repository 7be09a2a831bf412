// SPDX-License-Identifier: Apache-2.0
//
// mma.m8n8k4 with f16, four products at once.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMma && instruction.products() == 4;
}

}  // namespace

void AddMmaQuads(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
