// SPDX-License-Identifier: Apache-2.0
//
// What NVIDIA's management library tells of a GPU; found at run time, with declarations of our own.
// It only reads, and needs no CUDA context.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/dynamic_library.h"

namespace gemmd {

// A GPU at one moment. What this GPU or its driver does not tell is absent.
struct GpuReading {
  std::optional<double> utilization;         // Share of the time with a kernel running, 0..1.
  std::optional<double> memory_utilization;  // The same for reading or writing its memory.
  std::optional<double> power_watts;
  std::optional<double> power_limit_watts;
  std::optional<double> energy_joules;  // Since the driver was loaded.
  std::optional<int64_t> memory_bytes;
  std::optional<int64_t> memory_used_bytes;  // By every process.
  std::optional<int64_t> sm_clock_hertz;
  std::optional<int64_t> memory_clock_hertz;
  std::optional<double> temperature_celsius;
  std::optional<int64_t> ecc_corrected;  // Since the driver was loaded.
  std::optional<int64_t> ecc_uncorrected;
};

class Nvml {
 public:
  static constexpr char kLibrary[] = "libnvidia-ml.so.1";

  // Of the GPU at a PCI bus address, "0000:01:00.0".
  // Errors: NotFound where the library or the GPU is not there, Unavailable where NVML does not
  // start; with the call that failed and NVML's code.
  static absl::StatusOr<Nvml> Open(const std::string& pci_bus_id,
                                   const std::string& library = kLibrary);

  std::string driver_version() const;  // "580.159.04"; empty where it cannot be read.
  std::string uuid() const;            // "GPU-..."; empty where it cannot be read.
  int sm_clock_mhz() const;            // Now; 0 where it cannot be read.

  // Takes some milliseconds on some GPUs, and does not end on one that hangs. Threads: any.
  GpuReading Read() const;

 private:
  // As nvml.h declares them: each returns 0 where it could.
  struct MemoryInfo {
    unsigned version = sizeof(MemoryInfo) | 2U << 24;
    // What the driver keeps for itself is reserved, and not used.
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

  explicit Nvml(DynamicLibrary library) : library_(std::move(library)) {}
  void FindFunctions();

  DynamicLibrary library_;
  void* device_ = nullptr;
  Functions functions_;
};

}  // namespace gemmd
