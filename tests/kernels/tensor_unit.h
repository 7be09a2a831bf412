// SPDX-License-Identifier: Apache-2.0
//
// The name of an instruction's tensor core unit in machine code.
#pragma once

#include <string_view>

#include "kernels/mma/instruction.h"

namespace gemmd {

// The letter before MMA in the machine code of an instruction that is not emulated.
constexpr std::string_view TensorUnitOf(const mma::Instruction& instruction) {
  if (instruction.a == ElementType::kF64) return "D";
  if (instruction.bit_count != mma::BitCount::kNone) return "B";
  if (IsInteger(instruction.a)) return "I";
  if (BitsOf(instruction.a) > 8) return "H";
  const bool is_fp4 =
      instruction.kind == mma::Kind::kMxf4 || instruction.kind == mma::Kind::kMxf4nvf4;
  return is_fp4 ? "O" : "Q";
}

}  // namespace gemmd
