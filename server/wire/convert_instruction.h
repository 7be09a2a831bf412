// SPDX-License-Identifier: Apache-2.0
//
// The tables of the matrix instructions (kernels/mma) as the wire shows them.
#pragma once

#include "absl/status/status.h"
#include "gemmd/v1/instructions.pb.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

v1::Instruction ToWire(const mma::Instruction& instruction);

// Errors: NotFound for an unknown chip.
absl::Status ListInstructions(const v1::ListInstructionsRequest& request,
                              v1::ListInstructionsResponse& response);

// Errors: NotFound for an unknown instruction, with the nearest names; InvalidArgument for an
// operand or a selector that the instruction does not have.
absl::Status DescribeFragment(const v1::DescribeFragmentRequest& request,
                              v1::DescribeFragmentResponse& response);

}  // namespace gemmd
