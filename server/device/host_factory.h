// SPDX-License-Identifier: Apache-2.0
//
// The devices of the host by name: `cpu`, and `sim:sm_90` and the other chips, or `sim` for all of
// them.
#pragma once

#include <string>
#include <vector>

#include "kernels/cpu/row_check.h"
#include "kernels/mma/chip.h"
#include "server/device/device_factory.h"

namespace gemmd {

// The name of the simulator of this chip.
std::string SimulatorName(mma::Chip chip);

// The rows that fail their check on this processor (kernels/cpu/row_check.h), for
// DeviceOptions::cpu_faults; none where the options ask for no device `cpu`.
// Threads: called before any other thread exists.
std::vector<RowFault> FindCpuFaults(const DeviceOptions& options);

extern const DeviceFactory kCpuFactory;
extern const DeviceFactory kSimulatorFactory;

}  // namespace gemmd
