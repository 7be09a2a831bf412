// SPDX-License-Identifier: Apache-2.0
//
// The devices of the host by name: `cpu`, and `sim:sm_90` and the other chips, or `sim` for all of
// them.
#pragma once

#include <string>

#include "kernels/mma/chip.h"
#include "server/device/device_factory.h"

namespace gemmd {

// The name of the simulator of this chip.
std::string SimulatorName(mma::Chip chip);

extern const DeviceFactory kCpuFactory;
extern const DeviceFactory kSimulatorFactory;

}  // namespace gemmd
