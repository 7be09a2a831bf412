// SPDX-License-Identifier: Apache-2.0
//
// A device for tests of the benchmark: it launches rows of GPUs on the simulator, in host memory,
// and every call takes as long as the test says. A test may corrupt its results.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "kernels/bench/gpu/device.h"

namespace gemmd::bench {

class SimulatingDevice : public Device {
 public:
  SimulatingDevice();

  const DeviceFacts& facts() const override { return facts_; }
  CUstream_st* stream() const override { return nullptr; }
  absl::StatusOr<DeviceBytes> Allocate(int64_t bytes) override;
  absl::Status Write(std::byte* to, const std::byte* from, int64_t bytes) override;
  absl::Status Read(std::byte* to, const std::byte* from, int64_t bytes) override;
  absl::Status Fill(std::byte* to, uint8_t value, int64_t bytes) override;
  absl::Status Wait() override {
    ++waits;
    return absl::OkStatus();
  }
  std::optional<double> energy_joules() const override {
    if (!joules_per_launch) return std::nullopt;
    return launches * *joules_per_launch;
  }
  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override;
  absl::StatusOr<std::unique_ptr<Loop>> MakeLoop(int calls, const Call& call) override;
  absl::StatusOr<std::unique_ptr<Loop>> MakeLastKernelLoop(int calls, const Call& call) override;

  // Called with D after launch number `launch`, counted from 0.
  std::function<void(int launch, const Problem& problem, std::byte* d)> spoil;
  // If set, the result of a launch, which then does nothing.
  std::function<absl::Status(const Kernel& kernel)> refuse;
  double seconds_per_call = 1e-3;
  double seconds_per_last_kernel = 0;  // 0: a launch is one kernel.
  std::optional<double> joules_per_launch;
  int64_t allocated_bytes = 0;  // Currently allocated.
  int launches = 0;
  int waits = 0;

 private:
  DeviceFacts facts_;
};

// The row with this index among those that this device has for an instruction.
const Kernel& GpuRow(std::string_view instruction, int index = 0);

}  // namespace gemmd::bench
