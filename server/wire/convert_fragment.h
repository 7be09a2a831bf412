// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of an instruction's operands lie (kernels/mma/fragment.h), as the wire shows
// it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "gemmd/v1/instructions.pb.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// Errors: InvalidArgument for an operand or a selector that the instruction does not have.
absl::Status CheckFragment(const v1::DescribeFragmentRequest& request,
                           const mma::Instruction& instruction);

// The bytes of the answer to a request that CheckFragment accepts.
std::string DescribeFragment(const mma::Instruction& instruction, v1::FragmentOperand operand,
                             int selector);

}  // namespace gemmd
