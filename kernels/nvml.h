// SPDX-License-Identifier: Apache-2.0
//
// Readings of a GPU from NVIDIA's management library (NVML). The library is found at run time and
// its functions are declared here. This class only reads, and needs no CUDA context.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/dynamic_library.h"

namespace gemmd {

// The state of a GPU at one moment. Values that this GPU or its driver does not report are absent.
struct GpuReading {
  std::optional<double> utilization;         // Share of the time with a kernel running, 0..1.
  std::optional<double> memory_utilization;  // Share of the time its memory is accessed, 0..1.
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<double> energy_joules;  // Since the driver was loaded.
  std::optional<int64_t> memory_bytes;
  std::optional<int64_t> memory_used_bytes;  // In use by all processes.
  std::optional<int64_t> sm_clock_hertz;
  std::optional<int64_t> memory_clock_hertz;
  std::optional<double> temperature_celsius;
  std::optional<int64_t> ecc_corrected;  // Since the driver was loaded.
  std::optional<int64_t> ecc_uncorrected;
};

class Nvml {
 public:
  static constexpr char kLibrary[] = "libnvidia-ml.so.1";

  // Opens the GPU at a PCI bus address, "0000:01:00.0".
  // Errors: NotFound if the library or the GPU is missing, Unavailable if NVML does not start; the
  // message has the call that failed and NVML's code.
  static absl::StatusOr<Nvml> Open(const std::string& pci_bus_id,
                                   const std::string& library = kLibrary);

  Nvml(Nvml&& other) = default;
  Nvml& operator=(Nvml&& other) = delete;

  std::string driver_version() const;  // "580.159.04"; empty where it cannot be read.
  std::string uuid() const;            // "GPU-..."; empty where it cannot be read.
  int sm_clock_mhz() const;            // The current clock; 0 if it cannot be read.

  // Takes a few milliseconds on some GPUs, and never returns on a hung GPU. Threads: any.
  GpuReading Read() const;

 private:
  // NVML's functions, declared as in NVIDIA's nvml.h; each returns 0 on success.
  struct MemoryInfo {
    unsigned version = sizeof(MemoryInfo) | 2U << 24;
    // Memory that the driver keeps for itself counts as reserved, not as used.
    unsigned long long total = 0, reserved = 0, free = 0, used = 0;
  };
  struct Utilization {
    unsigned gpu, memory;  // Per cent.
  };
  struct Functions {
    int (*driver_version)(char* version, unsigned bytes) = nullptr;
    int (*uuid)(void* device, char* uuid, unsigned bytes) = nullptr;
    int (*utilization)(void* device, Utilization* rates) = nullptr;
    int (*power)(void* device, unsigned* milliwatts) = nullptr;
    int (*power_limit)(void* device, unsigned* milliwatts) = nullptr;
    int (*energy)(void* device, unsigned long long* millijoules) = nullptr;
    int (*memory)(void* device, MemoryInfo* memory) = nullptr;
    int (*clock)(void* device, int clock, unsigned* megahertz) = nullptr;
    int (*temperature)(void* device, int sensor, unsigned* celsius) = nullptr;
    int (*ecc_errors)(void* device, int severity, int since, unsigned long long* count) = nullptr;
  };

  struct ShutDown {
    void operator()(int (*shutdown)()) const { shutdown(); }
  };

  explicit Nvml(DynamicLibrary library) : library_(std::move(library)) {}
  void FindFunctions();

  DynamicLibrary library_;
  // Set once NVML is initialized: its destructor calls nvmlShutdown before the library is unloaded,
  // which would leak its allocations.
  std::unique_ptr<int(), ShutDown> initialised_;
  void* device_ = nullptr;
  Functions functions_;
};

}  // namespace gemmd
