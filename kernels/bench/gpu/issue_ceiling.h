// SPDX-License-Identifier: Apache-2.0
//
// The most that an instruction alone can do on a chip: what nothing but it, on operands that stay
// in registers, was measured to reach on all multiprocessors. No kernel of it is faster.
#pragma once

#include <optional>

#include "kernels/kernel.h"
#include "kernels/mma/instruction.h"

namespace gemmd::bench {

// Operations a second; of a sparse A as if it were dense. Absent where nobody measured.
//
// Source: measured on an H200 (132 multiprocessors, driver 580.159.04, CUDA 13.0, random normal
// data, 2026-11-21). Absent for other chips and other numbers of
// multiprocessors.
std::optional<double> IssueCeilingOf(const mma::Instruction& instruction, const Target& target);

}  // namespace gemmd::bench
