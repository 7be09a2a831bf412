// SPDX-License-Identifier: Apache-2.0
//
// How one kind of device comes from its names: what devices.cc needs of each kind, and all that it
// needs. A new kind is a Device class, a factory beside it and one line in devices.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "kernels/cpu/row_check.h"
#include "server/device/device.h"

namespace gemmd {

struct DeviceOptions {
  // Names of devices, or words that stand for several of them, as the factories know them. None:
  // DefaultDeviceNames.
  std::vector<std::string> names;
  int cpu_threads = 0;               // For each device of the host; 0: every core that it may use.
  std::vector<RowFault> cpu_faults;  // Target::faulty_rows of the device `cpu`, which it borrows.
  std::string worker_binary;         // Empty: `gemmd-worker` beside this process's own binary.
  bool is_worker_confined = true;    // WorkerCommand::is_confined.
  bool poisons_freed = false;        // Memory of the host: server/device/poison.h.
  int64_t gpu_staging_bytes = int64_t{768} << 20;     // WorkerDeviceOptions::staging_bytes.
  int64_t gpu_memory_bytes = 0;                       // WorkerCommand::memory_limit_bytes.
  int64_t gpu_tensor_bytes = 0;                       // WorkerCommand::tensor_limit_bytes.
  absl::Duration worker_rest = absl::Minutes(5);      // RestartPolicy::Limits::rest_ns.
  absl::Duration canary_interval = absl::Minutes(1);  // WorkerDeviceOptions::canary_interval.
  absl::Duration watchdog_most = absl::Minutes(5);    // WorkerDeviceOptions::watchdog_most.
};

struct NamedDevice {
  std::string name;
  bool must_be_there = true;  // Otherwise it is left out where it starts with NotFound.
};

struct DeviceFactory {
  // For people: "sim:sm_90 and the like, or sim, every chip that is known".
  std::string_view help;

  // The names and words that it knows, for the message about one that nobody knows.
  std::string (*known)();

  // The devices that the name or word stands for; none where this factory does not know it.
  std::vector<NamedDevice> (*expand)(std::string_view name);

  // Begins to make the device, which Device::WaitUntilStarted waits for. The name is of `expand`.
  std::unique_ptr<Device> (*make)(std::string_view name, const DeviceOptions& options);

  // What the machine lacks for devices of the kind, for the message where one does not start;
  // empty: nothing that is known.
  std::string (*missing)() = [] { return std::string(); };
};

}  // namespace gemmd
