// SPDX-License-Identifier: Apache-2.0
//
// How busy this process keeps the machine.
#pragma once

#include <cstdint>
#include <string>

namespace gemmd {

// CPU time of all threads so far.
int64_t ProcessCpuNs();

// Cores that this process may use: by its affinity, and by the quota of its control group.
double UsableCores();

// Cores of a quota as cpu.max of a control group has it, "200000 100000"; infinite for "max" and
// for what is none.
double CoresOfQuota(const std::string& cpu_max);

}  // namespace gemmd
