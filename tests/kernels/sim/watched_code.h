// SPDX-License-Identifier: Apache-2.0
//
// Which vector code a product was given to. The linker hands the calls to the test (--wrap, see
// CMakeLists.txt), so that the simulator itself need not count them.
#pragma once

#include <string_view>

#include "kernels/mma/instruction.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd {

// The code of the last product since the last call of this; null where there was none.
const sim::VectorCode* TakeWatchedCode();

// The code that this processor should run the instruction with, by what Linux says of it; null
// where the plain code has to.
const sim::VectorCode* WantedCode(const mma::Instruction& instruction);

// Whether Linux says that the processor has the feature, as in "avx2".
bool ProcessorHas(std::string_view feature);

}  // namespace gemmd
