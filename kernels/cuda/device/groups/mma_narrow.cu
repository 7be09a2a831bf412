// SPDX-License-Identifier: Apache-2.0
//
// mma with any of the float types of at most 8 bits, in bytes (kind::f8f6f4).
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMma && instruction.kind == mma::Kind::kF8f6f4;
}

}  // namespace

void AddMmaNarrow(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
