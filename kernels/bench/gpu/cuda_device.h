// SPDX-License-Identifier: Apache-2.0
//
// A GPU as a device of the benchmark. Calls are timed as CUDA graphs, which leave no gaps between
// launches, or one by one if a call cannot be captured.
#pragma once

#include <memory>
#include <optional>

#include "kernels/bench/gpu/device.h"
#include "kernels/cuda/device/runtime.h"
#include "kernels/nvml.h"

namespace gemmd::bench {

class CudaDevice : public Device {
 public:
  // Makes the GPU the calling thread's current one. Errors: FailedPrecondition if there is no GPU
  // of that number, or its chip is unknown.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int index);

  const DeviceFacts& facts() const override { return facts_; }
  CUstream_st* stream() const override { return stream_.get(); }
  absl::StatusOr<DeviceBytes> Allocate(int64_t bytes) override;
  absl::Status Write(std::byte* to, const std::byte* from, int64_t bytes) override;
  absl::Status Read(std::byte* to, const std::byte* from, int64_t bytes) override;
  absl::Status Fill(std::byte* to, uint8_t value, int64_t bytes) override;
  absl::Status Wait() override { return stream_.Wait(); }
  absl::Status Launch(const Kernel& kernel, const GemmArgs& args) override;
  absl::StatusOr<std::unique_ptr<Loop>> MakeLoop(int calls, const Call& call) override;
  absl::StatusOr<std::unique_ptr<Loop>> MakeLastKernelLoop(int calls, const Call& call) override;

  // The current clock of the multiprocessors; 0 if unknown.
  std::optional<double> energy_joules() const override;
  int ReadClockMhz() const;

 private:
  CudaDevice() = default;
  absl::Status ReadFacts(int index);

  DeviceFacts facts_;
  Stream stream_;
  std::optional<Nvml> nvml_;
};

}  // namespace gemmd::bench
