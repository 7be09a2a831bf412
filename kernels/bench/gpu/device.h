// SPDX-License-Identifier: Apache-2.0
//
// What the benchmark of GPU kernels asks of a device. One is a GPU (cuda_device.h); the tests have
// one that simulates.
//
// Everything is put on one stream, in order. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernel.h"

struct CUstream_st;  // What cudaStream_t points at.

namespace gemmd::bench {

struct DeviceFacts {
  std::string name;    // "NVIDIA H200".
  std::string driver;  // "580.159.04"
  std::string cuda;    // Version of CUDA's runtime: "13.0".
  Target target;
  int64_t l2_bytes = 0;
  int max_sm_clock_mhz = 0;
};

// Memory of a device, given back at the end.
using DeviceBytes = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;

// Calls that were put together once and are timed again and again.
class Loop {
 public:
  virtual ~Loop() = default;
  // All calls, `times` over: their time in seconds by the device's own clock. Waits for them.
  virtual absl::StatusOr<double> Run(int times) = 0;
  virtual int calls() const = 0;
  // The clock of the multiprocessors in the middle of the latest Run; 0 where nobody can tell.
  virtual int sm_clock_mhz() const = 0;
};

// Puts the work of call number `index` on the stream, without waiting.
using Call = std::function<absl::Status(int index)>;

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceFacts& facts() const = 0;
  virtual CUstream_st* stream() const = 0;

  // Aligned to 256 bytes. Errors: ResourceExhausted.
  virtual absl::StatusOr<DeviceBytes> Allocate(int64_t bytes) = 0;
  virtual absl::Status Write(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual absl::Status Read(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual absl::Status Fill(std::byte* to, uint8_t value, int64_t bytes) = 0;
  virtual absl::Status Wait() = 0;
  // What the device has used since its driver was loaded; absent where nobody can tell.
  virtual std::optional<double> energy_joules() const = 0;

  // As LaunchOnStream of kernels/cuda/device/launch.h.
  virtual absl::Status Launch(const Kernel& kernel, const GemmArgs& args) = 0;

  // Calls 0 .. calls-1, back to back. Each has been made before.
  virtual absl::StatusOr<std::unique_ptr<Loop>> MakeLoop(int calls, const Call& call) = 0;

  // The last kernel of each call alone, without what prepares its operands, which has run before.
  // Null where a call is one kernel anyhow, or cannot be taken apart.
  virtual absl::StatusOr<std::unique_ptr<Loop>> MakeLastKernelLoop(int calls, const Call& call) = 0;
};

}  // namespace gemmd::bench
