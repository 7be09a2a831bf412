// SPDX-License-Identifier: Apache-2.0
//
// The peak rate of an instruction on a chip: measured on all multiprocessors with only this
// instruction, on operands in registers. No kernel with it is faster.
#pragma once

#include <optional>

#include "kernels/kernel.h"
#include "kernels/mma/instruction.h"

namespace gemmd::bench {

// Operations per second (sparse A counted as dense); absent if not measured. Source: measured on an
// H200 (132 multiprocessors, driver 580.159.04, CUDA 13.0, random normal data, 2026-11-21). Absent
// for other chips and other numbers of multiprocessors.
std::optional<double> IssueCeilingOf(const mma::Instruction& instruction, const Target& target);

}  // namespace gemmd::bench
