// SPDX-License-Identifier: Apache-2.0
//
// The matrix instructions as tables: which chip has them, how one chip executes them, how many
// there are of each family.
#pragma once

#include <string>

#include "gemmd/v1/instructions.pb.h"

namespace gemmd {

// One line for each instruction or, unless `is_complete`, for each that differs in more than the N
// of wgmma. With a chip: registers, support and lowering there; else a letter for each chip.
std::string InstructionTable(const v1::ListInstructionsResponse& instructions,
                             const std::string& chip, bool is_complete);

// Families with their counts: all, and for each chip native ones and emulated ones.
std::string FamilyTable(const v1::ListInstructionsResponse& instructions);

}  // namespace gemmd
