// SPDX-License-Identifier: Apache-2.0
#include "server/worker/gpu_runtime.h"

#include <algorithm>

#include "kernels/matrix/status.h"

namespace gemmd {

Moment Lanes::TakeMoment() {
  if (free_.empty()) {
    uses_.emplace_back();
    return static_cast<Moment>(uses_.size() - 1);
  }
  const Moment moment = free_.back();
  free_.pop_back();
  return moment;
}

void Lanes::FreeIfUnused(Moment moment) {
  const Use& use = uses_[moment];
  if (!use.is_awaited && !use.is_kept) free_.push_back(moment);
}

absl::StatusOr<LanePoint> Lanes::Mark(Lane lane, int64_t cost_ns) {
  const Moment moment = TakeMoment();
  if (absl::Status status = runtime_.Mark(lane, moment); !status.ok()) {
    FreeIfUnused(moment);
    return status;
  }
  State& state = StateOf(lane);
  uses_[moment] = {.is_awaited = true, .is_kept = true};
  state.marked.push_back({.number = ++state.last, .moment = moment, .cost_ns = cost_ns});
  state.outstanding_ns += cost_ns;
  return LanePoint{.lane = lane, .number = state.last, .moment = moment};
}

void Lanes::Release(const LanePoint& point) {
  if (point.number == 0) return;
  uses_[point.moment].is_kept = false;
  FreeIfUnused(point.moment);
}

absl::Status Lanes::Follow(Lane lane, Lane other, uint64_t number) {
  const State& state = StateOf(other);
  if (lane == other || number <= state.reached) return absl::OkStatus();
  const auto first =
      std::find_if(state.marked.begin(), state.marked.end(),
                   [number](const Marked& marked) { return marked.number >= number; });
  if (first == state.marked.end())
    return absl::InternalError("lane: got a point that is not marked yet");
  return runtime_.Follow(lane, first->moment);
}

void Lanes::PopFirst(State& state) {
  const Marked first = state.marked.front();
  state.marked.pop_front();
  state.reached = first.number;
  state.outstanding_ns -= first.cost_ns;
  uses_[first.moment].is_awaited = false;
  FreeIfUnused(first.moment);
}

absl::Status Lanes::Update() {
  for (State& state : states_) {
    while (!state.marked.empty()) {
      ASSIGN_OR_RETURN(const bool is_reached, runtime_.IsReached(state.marked.front().moment));
      if (!is_reached) break;
      PopFirst(state);
    }
  }
  return absl::OkStatus();
}

void Lanes::ReachAll() {
  for (State& state : states_) {
    while (!state.marked.empty()) PopFirst(state);
  }
}

}  // namespace gemmd
