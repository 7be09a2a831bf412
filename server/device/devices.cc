// SPDX-License-Identifier: Apache-2.0
#include "server/device/devices.h"

#include <algorithm>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/gpu_factory.h"
#include "server/device/host_factory.h"

namespace gemmd {
namespace {

// Every kind of device that there is.
constexpr const DeviceFactory* kFactories[] = {
    &kCpuFactory,
    &kSimulatorFactory,
    &kGpuFactory,
};

absl::Status Unknown(std::string_view name) {
  std::string known;
  for (const DeviceFactory* factory : kFactories) {
    known += (known.empty() ? "" : ", ") + factory->known();
  }
  return absl::InvalidArgumentError(GotWant("devices", name, known));
}

struct Wanted {
  NamedDevice device;
  const DeviceFactory* factory = nullptr;
};

// The devices that the name stands for.
absl::StatusOr<std::vector<Wanted>> Expand(std::string_view name) {
  std::vector<Wanted> wanted;
  for (const DeviceFactory* factory : kFactories) {
    for (NamedDevice& device : factory->expand(name))
      wanted.push_back({std::move(device), factory});
  }
  if (wanted.empty()) return Unknown(name);
  return wanted;
}

absl::StatusOr<std::vector<Wanted>> ExpandAll(const std::vector<std::string>& names) {
  std::vector<Wanted> all;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(std::vector<Wanted> some, Expand(name));
    for (Wanted& wanted : some) {
      const std::string& device = wanted.device.name;
      const auto is_same = [&](const Wanted& other) { return other.device.name == device; };
      if (std::any_of(all.begin(), all.end(), is_same)) {
        return absl::InvalidArgumentError(GotWant("devices", Concat(device, " twice"), "it once"));
      }
      all.push_back(std::move(wanted));
    }
  }
  return all;
}

}  // namespace

std::string DeviceNamesHelp() {
  std::string help;
  for (const DeviceFactory* factory : kFactories) {
    help += (help.empty() ? "" : "; ") + std::string(factory->help);
  }
  return help;
}

absl::Status CheckDeviceName(std::string_view name) { return Expand(name).status(); }

std::vector<std::string> DefaultDeviceNames(const DeviceOptions& options) {
  std::vector<std::string> names;
  if (const std::string gpus = EveryUsableGpu(options); !gpus.empty()) names.push_back(gpus);
  names.push_back("cpu");
  names.push_back(SimulatorName(mma::Chip::kSm90));
  return names;
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> MakeDevices(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<Wanted> all,
                   ExpandAll(options.names.empty() ? DefaultDeviceNames(options) : options.names));
  std::vector<std::unique_ptr<Device>> devices;
  for (const Wanted& wanted : all) {
    devices.push_back(wanted.factory->make(wanted.device.name, options));
  }
  // All of them start at once; now each is waited for.
  for (size_t i = all.size(); i-- > 0;) {
    const auto& [name, must_be_there] = all[i].device;
    const absl::Status started = devices[i]->WaitUntilStarted();
    if (started.ok()) continue;
    if (must_be_there || !absl::IsNotFound(started)) {
      const std::string missing = all[i].factory->missing();
      return absl::Status(started.code(), Concat("device: ", name, " does not start: ",
                                                 std::string(started.message()),
                                                 missing.empty() ? "" : "; ", missing));
    }
    devices.erase(devices.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return devices;
}

}  // namespace gemmd
