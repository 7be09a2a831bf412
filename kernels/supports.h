// SPDX-License-Identifier: Apache-2.0
//
// Checks of problems and devices that all families of kernels share.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// OK if A and B have the kernel's types, its accumulation is as precise as asked for, and it takes
// factors of blocks if there are any.
// Errors: Unimplemented: field, got, want.
absl::Status SupportsTypes(const Kernel& kernel, const Problem& problem);

// SupportsTypes for a kernel with an instruction, whose sparsity, operation on bits and factors of
// blocks must also be the problem's.
// Errors: Unimplemented: field, got, want.
absl::Status SupportsInstruction(const Kernel& kernel, const Problem& problem);

// OK if the chip has the instruction, in hardware or not.
// Errors: FailedPrecondition; the message names the chips that have it.
absl::Status AvailableOn(const mma::Instruction& instruction, mma::Chip chip);

}  // namespace gemmd
