// SPDX-License-Identifier: Apache-2.0
//
// The GPU's memory for jobs, which run one at a time: one block that is kept from job to job and
// grows to what the largest of them needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

class DeviceArena {
 public:
  // Borrows the runtime.
  DeviceArena(GpuRuntime& runtime, int64_t limit_bytes)
      : runtime_(runtime), limit_bytes_(limit_bytes) {}
  ~DeviceArena() { Release(); }
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Returns a block of at least `bytes`, aligned to 256, with arbitrary content.
  // Errors: ResourceExhausted over the limit, or where the GPU has no more; a smaller block
  // can still be reserved afterwards.
  absl::StatusOr<std::byte*> Reserve(int64_t bytes);

  int64_t bytes() const { return bytes_; }

 private:
  void Release();

  GpuRuntime& runtime_;
  const int64_t limit_bytes_;
  std::byte* block_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace gemmd
