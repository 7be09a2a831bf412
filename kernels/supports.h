// SPDX-License-Identifier: Apache-2.0
//
// What families of kernels ask of problems and devices alike.
#pragma once

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instruction.h"

namespace gemmd {

// OK where A and B have the kernel's types and its accumulation is as precise as asked for.
// Errors: Unimplemented: field, got, want.
absl::Status SupportsTypes(const Kernel& kernel, const Problem& problem);

// The same of a kernel with an instruction, whose sparsity and operation on bits must be the
// problem's too.
// Errors: Unimplemented: field, got, want.
absl::Status SupportsInstruction(const Kernel& kernel, const Problem& problem);

// OK where the chip has the instruction, in hardware or not.
// Errors: FailedPrecondition; the message names the chips that have it.
absl::Status AvailableOn(const mma::Instruction& instruction, mma::Chip chip);

}  // namespace gemmd
