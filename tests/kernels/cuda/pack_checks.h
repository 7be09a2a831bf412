// SPDX-License-Identifier: Apache-2.0
//
// What packing of operands and metadata is checked for, on the host and on a GPU: every byte of the
// workspace that plan.h speaks of, element by element.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/row.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// One operand that its plan says is packed; or, of a sparse A, its metadata.
struct PackCase {
  CudaRow row;
  mma::Operand operand = mma::Operand::kA;
  Problem problem;
  CudaPlan plan;
  std::vector<std::byte> source;

  const OperandPlan& operand_plan() const { return operand == mma::Operand::kA ? plan.a : plan.b; }
};

// The workspace, of plan.workspace_bytes; all bytes were ones bits before.
using PackRunner = std::function<std::vector<std::byte>(const PackCase&)>;

// Each fails a test of GoogleTest where one byte differs. Operands of every type in every container
// and every direction; metadata of every instruction.
void CheckPacking(const PackRunner& run, RandomSource& random);
void CheckPackingOfSparseValues(const PackRunner& run, RandomSource& random);
void CheckMetadata(const PackRunner& run, RandomSource& random);

}  // namespace gemmd
