// SPDX-License-Identifier: Apache-2.0
//
// What NVIDIA's management library tells of a GPU; found at run time, with declarations of our own.
// It only reads.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/dynamic_library.h"

namespace gemmd::bench {

class Nvml {
 public:
  // Of the GPU at a PCI bus address, "0000:01:00.0".
  // Errors: NotFound where the library or the GPU is not there.
  static absl::StatusOr<Nvml> Open(const std::string& pci_bus_id);

  std::string driver_version() const;  // "580.159.04"; empty where it cannot be read.
  int sm_clock_mhz() const;            // Now; 0 where it cannot be read.

 private:
  explicit Nvml(DynamicLibrary library) : library_(std::move(library)) {}

  DynamicLibrary library_;
  void* device_ = nullptr;
  int (*system_driver_version_)(char* version, unsigned bytes) = nullptr;
  int (*clock_)(void* device, int clock, unsigned* mhz) = nullptr;
};

}  // namespace gemmd::bench
