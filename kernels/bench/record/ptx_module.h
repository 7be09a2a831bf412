// SPDX-License-Identifier: Apache-2.0
//
// A PTX module in which each block executes one variant once, on the operands of a recording.
#pragma once

#include <string>

#include "kernels/bench/record/variants.h"
#include "kernels/mma/chip.h"

namespace gemmd {

// The name of its entry; the parameters are the addresses of A, B, C, metadata and D of all cases.
// A block has as many threads as the instruction needs; block i computes case i.
inline constexpr char kEntryName[] = "record_cases";

// "sm_80", "sm_90a": with the chip's own features where it has any.
std::string TargetOf(mma::Chip chip);

std::string PtxModuleOf(const Variant& variant, mma::Chip chip);

}  // namespace gemmd
