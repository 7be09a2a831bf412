// SPDX-License-Identifier: Apache-2.0
#include "server/worker/run.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/kernel.h"
#include "kernels/status_macros.h"

namespace gemmd {

int64_t RunContext::free_bytes() const {
  return memory_limit_bytes - arena.bytes() - blocks.tensor_bytes() - blocks.scratch_bytes();
}

Run::Run(RunContext& context, uint64_t id, uint32_t slot, std::vector<BlockUse> uses)
    : context_(context), id_(id), slot_(slot), uses_(std::move(uses)) {
  context_.blocks.Enter(id_, uses_);
}

Run::~Run() {
  LeaveTurns();
  for (const LanePoint& point : points_) context_.lanes.Release(point);
  if (context_.computing == id_) context_.computing = 0;
}

void Run::Start() {
  if (is_started_) return;
  is_started_ = true;
  context_.staging.control().started_ids[slot_].store(id_, std::memory_order_release);
}

absl::StatusOr<LanePoint> Run::Mark(Lane lane, int64_t cost_ns) {
  ASSIGN_OR_RETURN(const LanePoint point, context_.lanes.Mark(lane, cost_ns));
  points_.push_back(point);
  return point;
}

bool Run::IsAborted() const {
  return context_.staging.control().aborted_ids[slot_].load(std::memory_order_relaxed) == id_;
}

AbortWord Run::abort_word() const {
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  const std::atomic<uint64_t>& word = context_.staging.control().aborted_ids[slot_];
  return {.word = reinterpret_cast<const uint64_t*>(&word), .value = id_};
}

absl::Status Run::Advance() {
  if (is_issued_) return absl::OkStatus();
  if (IsAborted()) return AbortedLaunch();
  return Issue();
}

void Run::End(const absl::Status& status) {
  outcome_ = status;
  is_issued_ = true;
  LeaveTurns();
  if (context_.computing == id_) context_.computing = 0;
}

absl::Status Run::AwaitAll() {
  // Later requests that use the same blocks follow, too.
  for (const Lane lane : kAllLanes) {
    ASSIGN_OR_RETURN(const LanePoint point, Mark(lane, 0));
    context_.blocks.SetUsedUntil(point, uses_);
  }
  return absl::OkStatus();
}

bool Run::IsDone() const {
  return is_issued_ && std::all_of(points_.begin(), points_.end(), [this](const LanePoint& point) {
           return context_.lanes.IsReached(point);
         });
}

Result Run::MakeResult() {
  Result result;
  result.id = id_;
  // A kernel may have left D as it was.
  if (outcome_.ok() && IsAborted()) outcome_ = AbortedLaunch();
  if (outcome_.ok()) outcome_ = FillTimes(result);
  result.status.Set(outcome_);
  return result;
}

}  // namespace gemmd
