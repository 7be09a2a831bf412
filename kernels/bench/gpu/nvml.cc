// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/nvml.h"

#include <array>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

constexpr int kSuccess = 0;  // NVML_SUCCESS
constexpr int kClockSm = 1;  // NVML_CLOCK_SM

}  // namespace

absl::StatusOr<Nvml> Nvml::Open(const std::string& pci_bus_id) {
  ASSIGN_OR_RETURN(DynamicLibrary library, DynamicLibrary::Load({"libnvidia-ml.so.1"}));
  Nvml nvml(std::move(library));
  int (*init)() = nullptr;
  int (*device_by_bus)(const char*, void**) = nullptr;
  RETURN_IF_ERROR(nvml.library_.Find("nvmlInit_v2", init));
  RETURN_IF_ERROR(nvml.library_.Find("nvmlDeviceGetHandleByPciBusId_v2", device_by_bus));
  RETURN_IF_ERROR(nvml.library_.Find("nvmlSystemGetDriverVersion", nvml.system_driver_version_));
  RETURN_IF_ERROR(nvml.library_.Find("nvmlDeviceGetClockInfo", nvml.clock_));
  if (init() != kSuccess || device_by_bus(pci_bus_id.c_str(), &nvml.device_) != kSuccess) {
    return absl::NotFoundError(Concat("NVML: no GPU ", pci_bus_id));
  }
  return nvml;
}

std::string Nvml::driver_version() const {
  std::array<char, 96> version = {};
  const auto bytes = static_cast<unsigned>(version.size());
  return system_driver_version_(version.data(), bytes) == kSuccess ? version.data() : "";
}

int Nvml::sm_clock_mhz() const {
  unsigned mhz = 0;
  return clock_(device_, kClockSm, &mhz) == kSuccess ? static_cast<int>(mhz) : 0;
}

}  // namespace gemmd::bench
