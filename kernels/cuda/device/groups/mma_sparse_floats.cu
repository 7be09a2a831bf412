// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with f16, bf16, tf32, e4m3 and e5m2.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMmaSparse && IsFloat(instruction.a) &&
         instruction.kind == mma::Kind::kNone && instruction.min_target <= 90;
}

}  // namespace

void AddSparseFloats(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
