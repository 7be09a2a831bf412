// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/record/families.h"

namespace gemmd {

ProductOperands MakeOperands(const mma::Instruction& instruction, std::span<const int> a_k,
                             OperandFamily family, RandomNumbers& random) {
  OperandFiller filler(instruction, a_k, random);
  if (IsInteger(instruction.a)) {
    FillIntegers(family, filler);
    return filler.operands();
  }
  FloatOperands floats(instruction, random);
  if (family.set == FamilySet::kOrdinary) {
    FillOrdinary(family.number, floats, filler);
  } else {
    FillDirected(family.number, floats, filler);
  }
  return filler.operands();
}

}  // namespace gemmd
