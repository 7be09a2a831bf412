// SPDX-License-Identifier: Apache-2.0
//
// The code for each kind of vector, whether or not this processor can run it.
#pragma once

#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {

extern const VectorCode kAvx2Code;
extern const VectorCode kAvx512Code;

}  // namespace gemmd::sim
