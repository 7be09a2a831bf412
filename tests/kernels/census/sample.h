// SPDX-License-Identifier: Apache-2.0
//
// Rows for a chip without a GPU for tests, sm_120, which every build compiles: one for each form of
// the instructions' wrappers there.
#pragma once

#include "kernels/cuda/row.h"

namespace gemmd {

constexpr bool IsSampled(const CudaRow& row) {
  const mma::Instruction& instruction = row.instruction;
  const bool is_sparse = instruction.family == mma::Family::kMmaSparse;
  switch (instruction.kind) {
    case mma::Kind::kNone: return false;
    case mma::Kind::kF8f6f4:
      return instruction.a == ElementType::kE3m2 && instruction.b == ElementType::kE2m1 &&
             is_sparse == (instruction.d == ElementType::kF16);
    case mma::Kind::kMxf8f6f4:
      return instruction.a == ElementType::kE4m3 && instruction.b == ElementType::kE2m3 &&
             is_sparse;
    case mma::Kind::kMxf4: return false;
    case mma::Kind::kMxf4nvf4: return instruction.scale == mma::ScaleType::kUe4m3 && !is_sparse;
  }
  return false;
}

}  // namespace gemmd
