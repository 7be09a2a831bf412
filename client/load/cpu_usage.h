// SPDX-License-Identifier: Apache-2.0
//
// How busy this process keeps the machine.
#pragma once

#include <cstdint>

namespace gemmd {

// CPU time of all threads so far.
int64_t ProcessCpuNs();

// Cores that this process may use.
double UsableCores();

}  // namespace gemmd
