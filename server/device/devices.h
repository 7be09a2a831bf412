// SPDX-License-Identifier: Apache-2.0
//
// From the names of devices to devices.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/device/device_factory.h"

namespace gemmd {

// The names of every kind of device, for people: "cuda:0 and the like, ...; cpu; ...".
std::string DeviceNamesHelp();

// Errors: InvalidArgument for a name that MakeDevices does not know.
absl::Status CheckDeviceName(std::string_view name);

// Every GPU, where this machine has any and there is a worker for them; the CPU; and the simulator
// of sm_90.
std::vector<std::string> DefaultDeviceNames(const DeviceOptions& options);

// Errors: InvalidArgument for a name that is unknown or given twice; those of a device that does
// not start, with its name.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(const DeviceOptions& options);

}  // namespace gemmd
