// SPDX-License-Identifier: Apache-2.0
//
// What a worker needs of a GPU. In the shipped worker it is CUDA (cuda/cuda_runtime.h); tests put
// the host's memory and the simulator in its place.
//
// What a GPU is asked for goes into one of its lanes. A lane does everything in the order of the
// calls; the lanes go on beside each other. A failure may show in any later call. All calls come
// from one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/bad_group.h"
#include "kernels/copied_part.h"
#include "kernels/kernel.h"

namespace gemmd {

struct CompressView;

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

// Copies from the host, kernels, copies to the host; what is small may go through one lane alone.
enum class Lane : uint8_t { kIn, kCompute, kOut };
inline constexpr std::array<Lane, 3> kAllLanes = {Lane::kIn, Lane::kCompute, Lane::kOut};

// The number of a moment: any small number. A moment is marked again and again.
using Moment = uint32_t;

// Lines in memory of the GPU: so many, each of so many bytes.
struct MemoryLines {
  std::byte* to = nullptr;
  int64_t to_stride_bytes = 0;
  const std::byte* from = nullptr;
  int64_t from_stride_bytes = 0;
  int64_t line_bytes = 0;
  int64_t lines = 0;
};

class GpuRuntime {
 public:
  virtual ~GpuRuntime() = default;

  // Takes the GPU of this number for all that follows.
  // Errors: NotFound where there are fewer GPUs; Internal with CUDA's own message.
  virtual absl::StatusOr<GpuDescription> Open(int ordinal) = 0;

  // Lets the GPU copy from and to this memory without waiting for the host, and kernels read and
  // write it, at the address that this gives.
  virtual absl::StatusOr<std::byte*> RegisterStaging(absl::Span<std::byte> staging) = 0;

  // Memory of the GPU, aligned to 256 bytes. What is freed is no longer in use by any lane. Neither
  // waits for what the lanes do.
  // Errors: ResourceExhausted.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;

  // These return at once. Host memory is part of the staging area.
  virtual absl::Status CopyIn(Lane lane, std::byte* to, absl::Span<const std::byte> from) = 0;
  virtual absl::Status CopyOut(Lane lane, absl::Span<std::byte> to, const std::byte* from) = 0;
  virtual absl::Status CopyLines(Lane lane, const MemoryLines& lines) = 0;
  // The list lies where kernels read it, as all that it points at. No part has more than so many
  // bytes, and none overlaps what another one writes.
  virtual absl::Status CopyParts(Lane lane, const CopiedPart* parts, int64_t count,
                                 int64_t most_bytes) = 0;
  virtual absl::Status Clear(Lane lane, std::byte* memory, int64_t bytes) = 0;
  // Does what LaunchOnStream does (kernels/cuda/device/launch.h), in the lane kCompute.
  virtual absl::Status Launch(const Kernel& kernel, const GemmArgs& args) = 0;
  // Does what CompressViewOnStream does (kernels/cuda/device/operands/sparse24.h), in kCompute.
  virtual absl::Status Compress(const CompressView& view, BadGroup* bad) = 0;
  // The moment is reached once everything that the lane was asked for is done.
  virtual absl::Status Mark(Lane lane, Moment moment) = 0;
  // What the lane is asked for from now on begins once the moment is reached. It was marked.
  virtual absl::Status Follow(Lane lane, Moment moment) = 0;

  // Whether a moment that was marked is reached. Returns at once.
  virtual absl::StatusOr<bool> IsReached(Moment moment) = 0;

  // Waits until everything is done.
  virtual absl::Status Wait() = 0;

  // The time between two moments that were marked and reached.
  virtual absl::StatusOr<int64_t> NanosecondsBetween(Moment start, Moment end) = 0;

  // After a failed call: whether every later call will fail, too, until the process ends. Returns
  // at once.
  virtual bool IsLost() = 0;
};

}  // namespace gemmd
