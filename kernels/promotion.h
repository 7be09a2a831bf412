// SPDX-License-Identifier: Apache-2.0
//
// Promotion: sums of a part of k are made by the tensor core and added up in f32 beside it.
//
// The tensor cores of sm_89 and sm_90 keep 13 fraction bits of a sum of fp8 products, so that the
// error of a long sum grows with k: 1.35e-1 of the largest D for 8192 products of numbers from 0 to
// 1. With sums of 128 that are added in f32 it stays what one such sum has. 128 is one stage of the
// kernels of warpgroups (128 bytes of a line), and what DeepGEMM takes.
#pragma once

#include "kernels/mma/arithmetic.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// Elements of k from one promotion to the next: whole instructions.
inline constexpr int kPromotionK = 128;

// Whether the instruction has rows with promoted sums in addition to those without.
constexpr bool HasPromotedRows(const mma::Instruction& instruction) {
  return IsFloat(instruction.a) && BitsOf(instruction.a) == 8 &&
         instruction.kind == mma::Kind::kNone && instruction.c == ElementType::kF32 &&
         instruction.d == ElementType::kF32;
}

// Whether the chip's own sums of the instruction, which has promoted rows, are so short of bits
// that they are promoted by default.
constexpr bool NeedsPromotion(const mma::Instruction& instruction, mma::Chip chip) {
  return HasPromotedRows(instruction) &&
         mma::ArithmeticOf(instruction, chip).stored_bits < mma::model::kF32Bits;
}

}  // namespace gemmd
