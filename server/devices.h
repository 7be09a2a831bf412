// SPDX-License-Identifier: Apache-2.0
//
// From the names of devices to devices.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/device.h"

namespace gemmd {

// Errors: InvalidArgument for a name that MakeDevices does not know.
absl::Status CheckDeviceName(std::string_view name);

// `cpu`, `sim:sm_90` and the other chips, or `sim` for every chip. `threads` computing threads for
// each; 0 takes every core that this process may run on.
// Errors: InvalidArgument for a name that is unknown or given twice, or no name at all.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(
    const std::vector<std::string>& names, int threads);

}  // namespace gemmd
