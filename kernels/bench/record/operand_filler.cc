// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/record/operand_filler.h"

#include <algorithm>

#include "kernels/matrix/element.h"

namespace gemmd {

OperandFiller::OperandFiller(const mma::Instruction& instruction, std::span<const int> a_k,
                             RandomNumbers& random)
    : instruction_(instruction), a_k_(a_k), random_(random) {}

int OperandFiller::PairStretch() const {
  const int group = mma::GroupSize(mma::SparsityOf(instruction_));
  const int kept = std::max(group / 2, 1);
  return group * std::max(2 / kept, 1);
}

double OperandFiller::Sum(int row, int column) const {
  double sum = 0;
  for (int i = 0; i < depth(); ++i) {
    const uint64_t a = operands_.a[Index(row, i, depth())];
    const uint64_t b = operands_.b[Index(LogicalK(row, i), column, instruction_.n)];
    sum += Decode(instruction_.a, a) * Decode(instruction_.b, b);
  }
  return sum;
}

}  // namespace gemmd
