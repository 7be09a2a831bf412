// SPDX-License-Identifier: Apache-2.0
//
// mma.sp with any of the float types of at most 8 bits, in bytes (kind::f8f6f4); and with e4m3 and
// e5m2 where the sums are f16.
#include "kernels/cuda/device/functions.h"
#include "kernels/cuda/device/mainloop/product.cuh"

namespace gemmd {
namespace {

constexpr bool Belongs(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  return instruction.family == mma::Family::kMmaSparse && IsFloat(instruction.a) &&
         instruction.scales == 0 &&
         (instruction.kind == mma::Kind::kF8f6f4 || instruction.min_target > 90);
}

}  // namespace

void AddSparseNarrow(CudaFunctions& functions) { AddFunctions<Belongs, MmaFunction>(functions); }

}  // namespace gemmd
