// SPDX-License-Identifier: Apache-2.0
//
// The GPU's memory for jobs: a few slabs that are kept from job to job, in which each job under way
// has a range. There are as many and as large ones as jobs at once have needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/crossing/free_ranges.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

class DeviceArena {
 public:
  struct Range {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
  };

  // Borrows the runtime.
  DeviceArena(GpuRuntime& runtime, int64_t limit_bytes)
      : runtime_(runtime), limit_bytes_(limit_bytes) {}
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Takes a range of so many bytes, aligned to 256, with arbitrary content; null for 0 bytes.
  // Errors: Unavailable where there will be room once others have given theirs back;
  // ResourceExhausted over the limit, or where the GPU has no more.
  absl::StatusOr<Range> Reserve(int64_t bytes);
  // Nothing uses the range any longer.
  void GiveBack(const Range& range);

  // What the slabs may take together from now on. They may take more already.
  void SetLimit(int64_t limit_bytes) { limit_bytes_ = limit_bytes; }
  int64_t bytes() const { return bytes_; }  // What all slabs take.
  // Frees the slabs in which no range is taken.
  void FreeIdle();

 private:
  struct Slab {
    std::byte* memory = nullptr;
    FreeRanges ranges;
  };

  Slab* FindRoom(int64_t bytes);
  absl::StatusOr<Slab*> AddSlab(int64_t bytes);
  bool is_idle() const;

  GpuRuntime& runtime_;
  int64_t limit_bytes_;
  std::vector<Slab> slabs_;
  int64_t bytes_ = 0;
};

}  // namespace gemmd
