// SPDX-License-Identifier: Apache-2.0
//
// Records which vector code computed a product. The linker redirects the calls to the test (--wrap,
// see CMakeLists.txt), so that the simulator itself need not count them.
#pragma once

#include <string_view>

#include "kernels/mma/instruction.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd {

// The code of the last product since the last call of this function; null if there was none.
const sim::VectorCode* TakeWatchedCode();

// The code with which this processor should run the instruction, by the features that Linux
// reports; null if the plain code must.
const sim::VectorCode* WantedCode(const mma::Instruction& instruction);

// Whether Linux reports the processor's feature, for example "avx2".
bool ProcessorHas(std::string_view feature);

}  // namespace gemmd
