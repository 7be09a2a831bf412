// SPDX-License-Identifier: Apache-2.0
//
// A PTX module that executes one variant once per block, on the operands of a recording.
#pragma once

#include <string>

#include "kernels/mma/chip.h"
#include "tests/vectors/replay.h"

namespace gemmd {

// Its entry; the parameters are the addresses of A, B, C, metadata and D of all cases. A block has
// the threads of the instruction; block i does case i.
inline constexpr char kEntryName[] = "record_cases";

// "sm_80", "sm_90a": with the features of the chip alone where there are any.
std::string TargetOf(mma::Chip chip);

std::string PtxModuleOf(const Variant& variant, mma::Chip chip);

}  // namespace gemmd
