// SPDX-License-Identifier: Apache-2.0
//
// Creates the packing jobs of a problem's operands from the problem and its plan.
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
  int bits = 0;             // Bits of an element.
  int container = 0;        // Bits of its container.
  int shift = 0;            // Bits below the element in its container.
  bool lies_along = false;  // Source lines run along the target's lines.
};

// The arguments are those of PackOperands and RepackMetadata (kernels/cuda/device/operands).
// Errors: none for a valid problem.
absl::StatusOr<OperandPacking> PackingOf(const CudaRow& row, mma::Operand operand,
                                         const Problem& problem, const OperandPlan& plan,
                                         const std::byte* source, std::byte* made);
absl::StatusOr<MetadataJob> MetadataJobOf(const CudaRow& row, const Problem& problem,
                                          const CudaPlan& plan, const std::byte* a,
                                          std::byte* made);

}  // namespace gemmd
