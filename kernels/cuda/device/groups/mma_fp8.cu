// SPDX-License-Identifier: Apache-2.0
//
// mma with e4m3 and e5m2.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMma && IsFloat(instruction.a) &&
         BitsOf(instruction.a) == 8 && instruction.kind == mma::Kind::kNone;
}

}  // namespace

void AddMmaFp8(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
