// SPDX-License-Identifier: Apache-2.0
//
// Checks of packed operands and metadata, on the host and on a GPU: every byte of the workspace
// described in plan.h, element by element.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/row.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// One operand that must be packed according to its plan; or the metadata of a sparse A.
struct PackCase {
  CudaRow row;
  mma::Operand operand = mma::Operand::kA;
  Problem problem;
  CudaPlan plan;
  std::vector<std::byte> source;

  const OperandPlan& operand_plan() const { return operand == mma::Operand::kA ? plan.a : plan.b; }
};

// Returns the workspace, of plan.workspace_bytes; all bytes had all bits set before.
using PackRunner = std::function<std::vector<std::byte>(const PackCase&)>;

// Each fails a GoogleTest test at a different byte. Operands of every type in every container and
// direction; metadata of every instruction.
void CheckPacking(const PackRunner& run, RandomSource& random);
void CheckPackingOfSparseValues(const PackRunner& run, RandomSource& random);
void CheckMetadata(const PackRunner& run, RandomSource& random);

}  // namespace gemmd
