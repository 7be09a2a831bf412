// SPDX-License-Identifier: Apache-2.0
//
// How far the lanes of a GPU have come: the moments that were marked in them, which lane has to
// follow which, and how much is still to be done.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

// A place in the order of a lane. The number 0 was reached before anything was asked for.
struct LanePoint {
  Lane lane = Lane::kIn;
  uint64_t number = 0;
  Moment moment = 0;
};

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
