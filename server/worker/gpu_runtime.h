// SPDX-License-Identifier: Apache-2.0
//
// What a worker needs of a GPU. In the shipped worker it is CUDA (cuda/cuda_runtime.h); tests put
// the host's memory and the simulator in its place.
//
// Everything that returns at once is done in the order of the calls, and a failure may show in any
// later call. All calls come from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace gemmd {

struct GpuDescription {
  std::string name;  // "NVIDIA H200".
  Target target;
  int64_t memory_bytes = 0;
  int64_t free_memory_bytes = 0;
  int64_t clock_khz = 0;
  int64_t memory_clock_khz = 0;
  int driver_version = 0;
  int runtime_version = 0;
  std::string pci_bus_id;  // "0000:01:00.0".
};

// The moments between the stages of a job.
enum class Moment : uint8_t { kStart, kCopiedIn, kComputed, kCopiedOut };

class GpuRuntime {
 public:
  virtual ~GpuRuntime() = default;

  // Takes the GPU of this number for all that follows.
  // Errors: NotFound where there are fewer GPUs; Internal with CUDA's own message.
  virtual absl::StatusOr<GpuDescription> Open(int ordinal) = 0;

  // Lets the GPU copy from and to this memory without waiting for the host.
  virtual absl::Status RegisterStaging(absl::Span<std::byte> staging) = 0;

  // Memory of the GPU, aligned to 256 bytes.
  // Errors: ResourceExhausted.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;

  // These return at once. Host memory is part of the staging area.
  virtual absl::Status CopyIn(std::byte* to, absl::Span<const std::byte> from) = 0;
  virtual absl::Status CopyOut(absl::Span<std::byte> to, const std::byte* from) = 0;
  virtual absl::Status Clear(std::byte* memory, int64_t bytes) = 0;
  // Does what LaunchOnStream does (kernels/cuda/device/launch.h).
  virtual absl::Status Launch(const Kernel& kernel, const GemmArgs& args) = 0;
  virtual absl::Status Mark(Moment moment) = 0;

  // Waits until everything is done.
  virtual absl::Status Wait() = 0;

  // Ends a step, which is all that was asked for since the last call, and waits until the step
  // before it is done. So at most two steps are under way.
  virtual absl::Status EndStep() = 0;

  // The time between two moments that were marked and reached.
  virtual absl::StatusOr<int64_t> NanosecondsBetween(Moment start, Moment end) = 0;

  // After a failed call: whether every later call will fail, too, until the process ends.
  virtual bool IsLost() = 0;
};

}  // namespace gemmd
