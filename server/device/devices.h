// SPDX-License-Identifier: Apache-2.0
//
// Creates devices from names: `cpu`; `sim:sm_90` and the other chips, or `sim` for all of them;
// `cuda:0` and so on, or `cuda` for every GPU. A new kind is a Device class and one entry in the
// table of devices.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cpu/row_check.h"
#include "server/device/device.h"

namespace gemmd {

struct DeviceOptions {
  // Names of devices, or words for several, as accepted by CheckDeviceName. Empty:
  // DefaultDeviceNames.
  std::vector<std::string> names;
  int cpu_threads = 0;               // For each host device; 0: every core that it may use.
  std::vector<RowFault> cpu_faults;  // Target::faulty_rows of the device `cpu`. Borrowed.
  std::string worker_binary;         // Empty: `gemmd-worker` beside this process's own binary.
  bool is_worker_confined = true;    // WorkerProgram::is_confined.
  bool poisons_freed = false;        // Memory of the host: server/device/held_bytes.h.
  int64_t gpu_staging_bytes = int64_t{768} << 20;  // WorkerDeviceOptions::staging_bytes.
  int64_t gpu_memory_bytes = 0;                    // WorkerDeviceOptions::memory_limit_bytes.
  absl::Duration watchdog_max = absl::Minutes(5);  // WorkerDeviceOptions::watchdog_max.
};

// Help text with the names of every kind of device: "cuda:0 and so on, ...; cpu; ...".
std::string DeviceNamesHelp();

// Errors: InvalidArgument for a name that MakeDevices does not know.
absl::Status CheckDeviceName(std::string_view name);

// Every GPU (if this machine has any and there is a worker for them), the CPU, and the simulator of
// sm_90.
std::vector<std::string> DefaultDeviceNames(const DeviceOptions& options);

// Errors: InvalidArgument for a name that is unknown or given twice; those of a device that does
// not start, with its name.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(const DeviceOptions& options);

// The rows that fail their check on this processor (kernels/cpu/row_check.h), for
// DeviceOptions::cpu_faults; empty if the options have no device `cpu`. Threads: called before any
// other thread exists.
std::vector<RowFault> FindCpuFaults(const DeviceOptions& options);

// A message that there is no driver if the folder (/dev) has none of its device files; otherwise
// empty.
std::string MissingDriver(const std::string& devices);

}  // namespace gemmd
