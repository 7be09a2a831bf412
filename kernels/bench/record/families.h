// SPDX-License-Identifier: Apache-2.0
//
// The families of operands of which recordings are made, with the numbers of
// tests/vectors/README.md.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/bench/record/operand_filler.h"
#include "kernels/bench/record/random_numbers.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

inline constexpr int kOrdinaryFamilies = 12;
inline constexpr int kDirectedFamilies = 8;

enum class FamilySet : uint8_t { kOrdinary, kDirected };

struct OperandFamily {
  FamilySet set = FamilySet::kOrdinary;
  int number = 0;
};

// Operands of one product. `a_k` holds the logical k of each element of A, m x a_columns.
ProductOperands MakeOperands(const mma::Instruction& instruction, std::span<const int> a_k,
                             OperandFamily family, RandomNumbers& random);

// The parts from which MakeOperands is built.
void FillOrdinary(int number, FloatOperands& floats, OperandFiller& filler);
void FillDirected(int number, FloatOperands& floats, OperandFiller& filler);
void FillIntegers(OperandFamily family, OperandFiller& filler);

}  // namespace gemmd
