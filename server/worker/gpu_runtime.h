// SPDX-License-Identifier: Apache-2.0
//
// The worker's interface to its GPU, and the progress of the GPU's lanes.
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
#include "kernels/matrix/element_gather.h"
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

// Lanes for copies from the host, kernels, and copies to the host; small work may use a single
// lane. Checks of answers have their own: their few blocks go first where a kernel of kCompute
// leaves a multiprocessor, so that they take the places which its last tiles leave empty.
enum class Lane : uint8_t { kIn, kCompute, kOut, kCheck };
inline constexpr std::array kAllLanes = {Lane::kIn, Lane::kCompute, Lane::kOut, Lane::kCheck};

// The number of a moment: any small number. Moments are reused.
using Moment = uint32_t;

// Lines in GPU memory.
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

  // Opens the GPU of this number. Errors: NotFound if there are fewer GPUs; Internal with CUDA's
  // message.
  virtual absl::StatusOr<GpuDescription> Open(int ordinal) = 0;

  // Registers host memory for asynchronous copies and kernel access; returns its address for
  // kernels.
  virtual absl::StatusOr<std::byte*> RegisterStaging(absl::Span<std::byte> staging) = 0;

  // Allocates GPU memory, aligned to 256 bytes. Freed memory must not be in use by any lane.
  // Neither function waits for lanes. Errors: ResourceExhausted.
  virtual absl::StatusOr<std::byte*> Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;

  // These return at once. Host memory is part of the staging area.
  virtual absl::Status CopyIn(Lane lane, std::byte* to, absl::Span<const std::byte> from) = 0;
  virtual absl::Status CopyOut(Lane lane, absl::Span<std::byte> to, const std::byte* from) = 0;
  virtual absl::Status CopyLines(Lane lane, const MemoryLines& lines) = 0;
  // Kernels must be able to read the list and everything that it points to. No part exceeds
  // `max_bytes`, or overlaps the target of another.
  virtual absl::Status CopyParts(Lane lane, const CopiedPart* parts, int64_t count,
                                 int64_t max_bytes) = 0;
  virtual absl::Status Clear(Lane lane, std::byte* memory, int64_t bytes) = 0;
  // GatherElements (kernels/matrix/element_gather.h) of each, in any order.
  virtual absl::Status Gather(Lane lane, absl::Span<const ElementGather> gathers) = 0;
  // LaunchOnStream (kernels/cuda/device/launch.h).
  virtual absl::Status Launch(Lane lane, const Kernel& kernel, const GemmArgs& args) = 0;
  // CompressViewOnStream (kernels/cuda/device/operands/sparse24.h) in kCompute.
  virtual absl::Status Compress(const CompressView& view, BadGroup* bad) = 0;
  // Marks a moment, reached once all work enqueued in the lane so far is done.
  virtual absl::Status Mark(Lane lane, Moment moment) = 0;
  // Work enqueued in the lane from now on begins once the (marked) moment is reached.
  virtual absl::Status Follow(Lane lane, Moment moment) = 0;

  // Whether a marked moment is reached. Returns at once.
  virtual absl::StatusOr<bool> IsReached(Moment moment) = 0;

  // Waits until everything is done.
  virtual absl::Status Wait() = 0;

  // The time between two reached moments.
  virtual absl::StatusOr<int64_t> NanosecondsBetween(Moment start, Moment end) = 0;

  // After a failed call: whether every later call will fail too, until the process ends. Returns at
  // once.
  virtual bool IsLost() = 0;
};

// A position in a lane. The number 0 is reached before any work.
struct LanePoint {
  Lane lane = Lane::kIn;
  uint64_t number = 0;
  Moment moment = 0;
};

// The progress of a GPU's lanes: their marked moments, dependencies between lanes, and outstanding
// work.
class Lanes {
 public:
  // Borrows the runtime.
  explicit Lanes(GpuRuntime& runtime) : runtime_(runtime) {}

  // Marks a point after all work enqueued in the lane. `cost_ns`: the predicted time of the work
  // since the last point. The caller keeps the point until Release.
  absl::StatusOr<LanePoint> Mark(Lane lane, int64_t cost_ns);
  void Release(const LanePoint& point);

  // Makes the lane wait for a point of another lane. No effect if it is reached.
  absl::Status Follow(Lane lane, Lane other, uint64_t number);

  // Updates which points are reached.
  absl::Status Update();
  // Call after the runtime has waited for all work.
  void ReachAll();

  bool IsReached(Lane lane, uint64_t number) const { return number <= StateOf(lane).reached; }
  bool IsReached(const LanePoint& point) const { return IsReached(point.lane, point.number); }
  // The predicted time of the lane's outstanding work.
  int64_t outstanding_ns(Lane lane) const { return StateOf(lane).outstanding_ns; }

  // The time between two reached, unreleased points.
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
  // A moment can be reused once it is neither awaited nor kept.
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
