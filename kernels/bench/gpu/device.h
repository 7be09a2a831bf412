// SPDX-License-Identifier: Apache-2.0
//
// The interface of a device for the GPU benchmark: a GPU (cuda_device.h), or the tests' simulated
// device. All work goes to one stream, in order. Not thread-safe.
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

// Owned memory of a device.
using DeviceBytes = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;

// A prepared sequence of calls that is timed repeatedly.
class Loop {
 public:
  virtual ~Loop() = default;
  // Runs all calls `times` times, waits, and returns the total seconds by the device's own clock.
  virtual absl::StatusOr<double> Run(int times) = 0;
  virtual int calls() const = 0;
  // The clock of the multiprocessors in the middle of the latest Run; 0 if unknown.
  virtual int sm_clock_mhz() const = 0;
};

// Enqueues the work of call number `index`, without waiting.
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
  // Energy used since the driver was loaded; absent if unknown.
  virtual std::optional<double> energy_joules() const = 0;

  // See LaunchOnStream in kernels/cuda/device/launch.h.
  virtual absl::Status Launch(const Kernel& kernel, const GemmArgs& args) = 0;

  // A loop of calls 0 .. calls-1, back to back. Each call must have run before.
  virtual absl::StatusOr<std::unique_ptr<Loop>> MakeLoop(int calls, const Call& call) = 0;

  // A loop of only the last kernel of each call, without the preparation of its operands, which has
  // run before. Null if a call is a single kernel, or cannot be split.
  virtual absl::StatusOr<std::unique_ptr<Loop>> MakeLastKernelLoop(int calls, const Call& call) = 0;
};

}  // namespace gemmd::bench
