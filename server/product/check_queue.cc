// SPDX-License-Identifier: Apache-2.0
#include "server/product/check_queue.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "kernels/cpu/host.h"

namespace gemmd {

CheckQueue::CheckQueue(int threads, const Clock& clock)
    : clock_(clock),
      short_("gemmd-verify", std::max(1, threads - threads / 2)),
      long_("gemmd-verify-l", std::max(1, threads / 2)) {}

void CheckQueue::Claim::Release() {
  CheckQueue* const queue = std::exchange(queue_, nullptr);
  if (queue == nullptr) return;
  MutexLock lock(&queue->mutex_);
  const auto claimed = queue->claimed_ns_.find(flow_);
  claimed->second -= expected_ns_;
  if (claimed->second == 0) queue->claimed_ns_.erase(claimed);
}

CheckQueue::Claim CheckQueue::Enter(const FlowId& flow, Priority priority, int64_t expected_ns,
                                    int64_t& wait_ns) {
  // Small enough that the sum of everything inside cannot overflow, and never 0, which would not
  // count.
  constexpr int64_t kMaxNs = std::numeric_limits<int64_t>::max() >> 24;
  Claim claim;
  claim.expected_ns_ = std::clamp<int64_t>(expected_ns, 1, kMaxNs);
  const bool is_long = claim.expected_ns_ > kShortNs;
  claim.flow_ = {is_long, priority, std::string(flow.caller), flow.connection};
  MutexLock lock(&mutex_);
  const auto own = claimed_ns_.try_emplace(claim.flow_, 0).first;
  const int64_t own_ns = own->second + claim.expected_ns_;
  int64_t ahead_ns = own->second;
  std::string_view caller;
  int64_t callers_ns = 0;  // The checks of that caller's other connections that come first.
  for (const auto& [other, other_ns] : claimed_ns_) {
    const auto& [other_is_long, other_priority, other_caller, connection] = other;
    if (other_is_long != is_long || other == claim.flow_) continue;
    if (other_priority != priority) {
      if (priority == Priority::kLow) ahead_ns += other_ns;
      continue;
    }
    if (caller != other_caller) callers_ns = 0;
    caller = other_caller;
    const int64_t first_ns = std::min(other_ns, own_ns);
    const int64_t max_ns = caller == flow.caller ? first_ns : own_ns - callers_ns;
    ahead_ns += std::min(first_ns, max_ns);
    callers_ns += std::min(first_ns, max_ns);
  }
  own->second = own_ns;
  wait_ns = ahead_ns / LaneOf(is_long).threads.size();
  claim.queue_ = this;
  return claim;
}

void CheckQueue::Add(std::unique_ptr<Check> check) {
  Lane* lane = nullptr;
  {
    MutexLock lock(&mutex_);
    if (!is_stopped_) {
      check->is_long = check->predicted_ns > kShortNs;
      lane = &LaneOf(check->is_long);
      Check& added = *check;
      checks_.Add(std::move(check));
      lane->queue.Add({.caller = added.caller, .connection = added.connection}, added);
    }
  }
  if (lane == nullptr) {
    check->work(absl::CancelledError(), nullptr);
    return;
  }
  lane->threads.Run([this, lane] { Run(*lane); });
}

CheckQueue::Check* CheckQueue::TakeNext(Lane& lane, Check* last, int64_t ran_ns) {
  Checks late;
  Check* next = nullptr;
  {
    MutexLock lock(&mutex_);
    if (last != nullptr) {
      if (last->abort) return last;  // It only has to end.
      lane.queue.End(*last, ran_ns);
      last->is_running = false;
      // Its turn is over, but its deadline was promised: once it has passed, the check is
      // cancelled.
      last->predicted_ns = std::max<int64_t>(1, last->predicted_ns - ran_ns);
      last->deadline_ns = kNoDeadlineNs;
      lane.queue.Add({.caller = last->caller, .connection = last->connection}, *last);
    }
    const DeviceQueue::Choice choice = lane.queue.TakeNext(clock_.NowNs());
    for (DeviceQueue::Job* const job : choice.too_late) {
      late.push_back(checks_.Take(static_cast<Check&>(*job)));
    }
    next = static_cast<Check*>(choice.next);
    if (next != nullptr) next->is_running = true;
  }
  Drop(std::move(late), absl::DeadlineExceededError("the check of D cannot be in time"));
  return next;
}

void CheckQueue::Run(Lane& lane) {
  SetThreads(1);
  Check* check = TakeNext(lane, nullptr, 0);
  while (check != nullptr) {
    const int64_t begun_ns = clock_.NowNs();
    const bool has_ended = check->work(absl::OkStatus(), &check->abort);
    const int64_t ran_ns = clock_.NowNs() - begun_ns;
    if (has_ended) {
      std::unique_ptr<Check> ended;  // Freed after the lock is released.
      MutexLock lock(&mutex_);
      lane.queue.End(*check, ran_ns);
      ended = checks_.Take(*check);
      return;
    }
    check = TakeNext(lane, check, ran_ns);
  }
}

// Removes a waiting check from the queue, or aborts a running one.
void CheckQueue::End(Check& check, Checks& dropped) {
  check.abort = true;
  if (check.is_running) return;
  LaneOf(check.is_long).queue.Remove(check);
  dropped.push_back(checks_.Take(check));
}

void CheckQueue::Drop(Checks dropped, const absl::Status& why) {
  for (const std::unique_ptr<Check>& check : dropped) check->work(why, nullptr);
}

void CheckQueue::Cancel(absl::Span<const JobId> ids) {
  Checks dropped;
  {
    MutexLock lock(&mutex_);
    for (const JobId id : ids) {
      Check* const check = checks_.Find(id);
      if (check != nullptr) End(*check, dropped);
    }
  }
  Drop(std::move(dropped), absl::CancelledError());
}

void CheckQueue::Stop() {
  Checks dropped;
  {
    MutexLock lock(&mutex_);
    is_stopped_ = true;
    std::vector<Check*> all;
    checks_.ForEach([&all](Check& check) { all.push_back(&check); });
    for (Check* const check : all) End(*check, dropped);
  }
  Drop(std::move(dropped), absl::CancelledError());
}

}  // namespace gemmd
