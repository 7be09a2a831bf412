// SPDX-License-Identifier: Apache-2.0
//
// What a worker asks of its GPU, and how far the lanes of that have come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/matrix/layout.h"
#include "kernels/matrix/sparse24.h"

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
                                 int64_t max_bytes) = 0;
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

// A place in the order of a lane. The number 0 was reached before anything was asked for.
struct LanePoint {
  Lane lane = Lane::kIn;
  uint64_t number = 0;
  Moment moment = 0;
};

// How far the lanes of a GPU have come: the moments that were marked in them, which lane has to
// follow which, and how much is still to be done.
class Lanes {
 public:
  // Borrows the runtime.
  explicit Lanes(GpuRuntime& runtime) : runtime_(runtime) {}

  // Marks a point after everything that the lane was asked for. What was asked for since the last
  // point should take so long. The caller keeps the point until Release.
  absl::StatusOr<LanePoint> Mark(Lane lane, int64_t cost_ns);
  void Release(const LanePoint& point);

  // Has the lane wait for a point of another lane. Asks for nothing where that is reached.
  absl::Status Follow(Lane lane, Lane other, uint64_t number);

  // Looks which points are reached.
  absl::Status Update();
  // The runtime has waited for all.
  void ReachAll();

  bool IsReached(Lane lane, uint64_t number) const { return number <= StateOf(lane).reached; }
  bool IsReached(const LanePoint& point) const { return IsReached(point.lane, point.number); }
  // What the lane is still to do should take so long.
  int64_t outstanding_ns(Lane lane) const { return StateOf(lane).outstanding_ns; }

  // Between two points that were reached and not released.
  absl::StatusOr<int64_t> NanosecondsBetween(const LanePoint& start, const LanePoint& end) {
    return runtime_.NanosecondsBetween(start.moment, end.moment);
  }

 private:
  struct Marked {
    uint64_t number = 0;
    Moment moment = 0;
    int64_t cost_ns = 0;
  };
  struct State {
    std::deque<Marked> marked;  // Not reached yet.
    uint64_t last = 0;
    uint64_t reached = 0;
    int64_t outstanding_ns = 0;
  };
  // A moment is free once it is neither awaited nor kept.
  struct Use {
    bool is_awaited = false;
    bool is_kept = false;
  };

  State& StateOf(Lane lane) { return states_[static_cast<size_t>(lane)]; }
  const State& StateOf(Lane lane) const { return states_[static_cast<size_t>(lane)]; }
  Moment TakeMoment();
  void FreeIfUnused(Moment moment);
  void PopFirst(State& state);

  GpuRuntime& runtime_;
  std::array<State, kAllLanes.size()> states_;
  std::vector<Use> uses_;  // By moment.
  std::vector<Moment> free_;
};

}  // namespace gemmd
