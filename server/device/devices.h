// SPDX-License-Identifier: Apache-2.0
//
// From the names of devices to devices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/device/device.h"

namespace gemmd {

struct DeviceOptions {
  // `cpu`; `cuda:0` and the other GPUs, or `cuda` for every GPU; `sim:sm_90` and the other chips,
  // or `sim` for every chip. None: DefaultDeviceNames.
  std::vector<std::string> names;
  int cpu_threads = 0;        // For each device of the host; 0: every core that it may use.
  std::string worker_binary;  // Empty: `gemmd-worker` beside this process's own binary.
  int64_t gpu_staging_bytes = int64_t{256} << 20;  // WorkerDeviceOptions::staging_bytes.
  int64_t gpu_memory_bytes = 0;                    // WorkerCommand::memory_limit_bytes.
};

// Errors: InvalidArgument for a name that MakeDevices does not know.
absl::Status CheckDeviceName(std::string_view name);

// Every GPU, where this machine has any and there is a worker for them; the CPU; and the simulator
// of sm_90.
std::vector<std::string> DefaultDeviceNames(const DeviceOptions& options);

// Errors: InvalidArgument for a name that is unknown or given twice; those of starting a GPU's
// worker, with the device's name.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(const DeviceOptions& options);

}  // namespace gemmd
