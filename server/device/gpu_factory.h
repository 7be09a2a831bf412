// SPDX-License-Identifier: Apache-2.0
//
// The GPUs by name: `cuda:0` and so on, or `cuda` for all of them.
#pragma once

#include <string>

#include "server/device/device_factory.h"

namespace gemmd {

extern const DeviceFactory kGpuFactory;

// Says that there is no driver where the folder, /dev, has none of the devices that one makes;
// otherwise empty.
std::string MissingDriver(const std::string& devices);

// The word for every GPU, where this machine shows any and there is a worker for them; otherwise
// empty.
std::string EveryUsableGpu(const DeviceOptions& options);

}  // namespace gemmd
