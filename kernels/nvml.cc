// SPDX-License-Identifier: Apache-2.0
#include "kernels/nvml.h"

#include <array>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

constexpr int kSuccess = 0;           // NVML_SUCCESS
constexpr int kClockSm = 1;           // NVML_CLOCK_SM
constexpr int kClockMemory = 2;       // NVML_CLOCK_MEM
constexpr int kSensorOfGpu = 0;       // NVML_TEMPERATURE_GPU
constexpr int kCorrected = 0;         // NVML_MEMORY_ERROR_TYPE_CORRECTED
constexpr int kUncorrected = 1;       // NVML_MEMORY_ERROR_TYPE_UNCORRECTED
constexpr int kSinceDriverStart = 0;  // NVML_VOLATILE_ECC

// The value from f(device, arguments..., T* value); absent if the function is missing or fails.
template <typename T, typename Function, typename... Arguments>
std::optional<T> Ask(Function* function, void* device, Arguments... arguments) {
  T value = {};
  if (function == nullptr || function(device, arguments..., &value) != kSuccess) {
    return std::nullopt;
  }
  return value;
}

// Converts NVML's value to a unit that is `per_unit` of NVML's units.
template <typename T>
std::optional<double> Scaled(std::optional<T> value, double per_unit) {
  if (!value) return std::nullopt;
  return static_cast<double>(*value) / per_unit;
}

std::optional<int64_t> Hertz(std::optional<unsigned> megahertz) {
  if (!megahertz) return std::nullopt;
  return int64_t{*megahertz} * 1'000'000;
}

std::optional<int64_t> Count(std::optional<unsigned long long> value) {
  if (!value) return std::nullopt;
  return static_cast<int64_t>(*value);
}

}  // namespace

absl::StatusOr<Nvml> Nvml::Open(const std::string& pci_bus_id, const std::string& library) {
  ASSIGN_OR_RETURN(DynamicLibrary loaded, DynamicLibrary::Load({library}));
  Nvml nvml(std::move(loaded));
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_by_bus)(const char*, void**) = nullptr;
  RETURN_IF_ERROR(nvml.library_.Find("nvmlInit_v2", init));
  RETURN_IF_ERROR(nvml.library_.Find("nvmlShutdown", shutdown));
  RETURN_IF_ERROR(nvml.library_.Find("nvmlDeviceGetHandleByPciBusId_v2", device_by_bus));
  if (const int code = init(); code != kSuccess) {
    return absl::UnavailableError(Concat("NVML: nvmlInit_v2 gave ", code));
  }
  nvml.initialised_.reset(shutdown);
  if (const int code = device_by_bus(pci_bus_id.c_str(), &nvml.device_); code != kSuccess) {
    return absl::NotFoundError(
        Concat("NVML: no GPU ", pci_bus_id, ": nvmlDeviceGetHandleByPciBusId_v2 gave ", code));
  }
  nvml.FindFunctions();
  return nvml;
}

// Functions that an old driver's library lacks stay null.
void Nvml::FindFunctions() {
  Functions& f = functions_;
  library_.Find("nvmlSystemGetDriverVersion", f.driver_version).IgnoreError();
  library_.Find("nvmlDeviceGetUUID", f.uuid).IgnoreError();
  library_.Find("nvmlDeviceGetUtilizationRates", f.utilization).IgnoreError();
  library_.Find("nvmlDeviceGetPowerUsage", f.power).IgnoreError();
  library_.Find("nvmlDeviceGetEnforcedPowerLimit", f.power_limit).IgnoreError();
  library_.Find("nvmlDeviceGetTotalEnergyConsumption", f.energy).IgnoreError();
  library_.Find("nvmlDeviceGetMemoryInfo_v2", f.memory).IgnoreError();
  library_.Find("nvmlDeviceGetClockInfo", f.clock).IgnoreError();
  library_.Find("nvmlDeviceGetTemperature", f.temperature).IgnoreError();
  library_.Find("nvmlDeviceGetTotalEccErrors", f.ecc_errors).IgnoreError();
}

std::string Nvml::driver_version() const {
  std::array<char, 96> version = {};
  const auto bytes = static_cast<unsigned>(version.size());
  const auto ask = functions_.driver_version;
  return ask != nullptr && ask(version.data(), bytes) == kSuccess ? version.data() : "";
}

std::string Nvml::uuid() const {
  std::array<char, 96> uuid = {};
  const auto bytes = static_cast<unsigned>(uuid.size());
  const auto ask = functions_.uuid;
  return ask != nullptr && ask(device_, uuid.data(), bytes) == kSuccess ? uuid.data() : "";
}

int Nvml::sm_clock_mhz() const {
  return static_cast<int>(Ask<unsigned>(functions_.clock, device_, kClockSm).value_or(0));
}

GpuReading Nvml::Read() const {
  const Functions& f = functions_;
  GpuReading reading;
  if (const auto rates = Ask<Utilization>(f.utilization, device_)) {
    reading.utilization = rates->gpu / 100.0;
    reading.memory_utilization = rates->memory / 100.0;
  }
  constexpr double kMilli = 1000;
  reading.power_watts = Scaled(Ask<unsigned>(f.power, device_), kMilli);
  reading.power_limit_watts = Scaled(Ask<unsigned>(f.power_limit, device_), kMilli);
  reading.energy_joules = Scaled(Ask<unsigned long long>(f.energy, device_), kMilli);
  if (const auto memory = Ask<MemoryInfo>(f.memory, device_)) {
    reading.memory_bytes = static_cast<int64_t>(memory->total);
    reading.memory_used_bytes = static_cast<int64_t>(memory->used);
  }
  reading.sm_clock_hertz = Hertz(Ask<unsigned>(f.clock, device_, kClockSm));
  reading.memory_clock_hertz = Hertz(Ask<unsigned>(f.clock, device_, kClockMemory));
  reading.temperature_celsius = Scaled(Ask<unsigned>(f.temperature, device_, kSensorOfGpu), 1);
  reading.ecc_corrected =
      Count(Ask<unsigned long long>(f.ecc_errors, device_, kCorrected, kSinceDriverStart));
  reading.ecc_uncorrected =
      Count(Ask<unsigned long long>(f.ecc_errors, device_, kUncorrected, kSinceDriverStart));
  return reading;
}

}  // namespace gemmd
