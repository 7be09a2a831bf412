// SPDX-License-Identifier: Apache-2.0
//
// From a problem and its plan to what the packing of its operands is about.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "kernels/cuda/operands/metadata_words.h"
#include "kernels/cuda/operands/pack_lines.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/row.h"
#include "kernels/problem.h"

namespace gemmd {

struct OperandPacking {
  PackJob job;
  int bits = 0;             // Of an element,
  int container = 0;        //   and of its container,
  int shift = 0;            //   in which it lies this far up.
  bool lies_along = false;  // Its lines are those of the target already.
};

// Arguments as those of PackOperand and RepackMetadata (kernels/cuda/device/operands).
// Errors: none for a valid problem.
absl::StatusOr<OperandPacking> PackingOf(const CudaRow& row, mma::Operand operand,
                                         const Problem& problem, const OperandPlan& plan,
                                         const std::byte* source, std::byte* workspace);
absl::StatusOr<MetadataJob> MetadataJobOf(const CudaRow& row, const Problem& problem,
                                          const CudaPlan& plan, const std::byte* a,
                                          std::byte* workspace);

}  // namespace gemmd
