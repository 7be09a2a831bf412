// SPDX-License-Identifier: Apache-2.0
//
// Promotion: the tensor core sums a part of k at a time, and these sums are added in f32 outside
// it.
//
// The tensor cores of sm_89 and sm_90 keep 13 fraction bits of a sum of fp8 products, so that the
// error of a long sum grows with k: 1.35e-1 of the largest D for 8192 products of numbers up to 1.
// With sums over 128 of k that are added in f32, the error stays that of one such sum. 128 is one
// stage of warpgroup kernels (128 bytes of a line), and DeepGEMM's choice.
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

// Whether a row of the instruction that promotes every promotion_k elements of k, 0 for never, also
// multiplies the sums by factors of blocks (BlockScaling::kPromotions).
constexpr bool ScalesPromotedSums(const mma::Instruction& instruction, int promotion_k) {
  return promotion_k > 0 && HasPromotedRows(instruction) &&
         instruction.family == mma::Family::kWgmma;
}

// Whether the instruction, which has promoted rows, keeps so few bits on this chip that its sums
// are promoted by default.
constexpr bool NeedsPromotion(const mma::Instruction& instruction, mma::Chip chip) {
  return HasPromotedRows(instruction) &&
         mma::ArithmeticOf(instruction, chip).stored_bits < mma::model::kF32Bits;
}

}  // namespace gemmd
