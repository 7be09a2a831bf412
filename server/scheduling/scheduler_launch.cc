// SPDX-License-Identifier: Apache-2.0
//
// What a device is given next, and what runs with it as one.
#include <algorithm>
#include <bit>

#include "kernels/catalog.h"
#include "kernels/select.h"
#include "server/scheduling/scheduler.h"

namespace gemmd {
namespace {

// What is best for few rows of D is not so for those of many jobs together.
void ChooseKernel(const DeviceProfile& profile, KernelChoices& choices, JoinedJob& joined) {
  const Job& job = joined.job();
  if (job.keeps_kernel) return;
  const absl::Span<const Kernel> catalog = Catalog(job.kernel->device_kind);
  const Kernel* const best = choices.Find({.problem = job.problem, .kernel = job.kernel}, [&] {
    return &FindBestLike(*job.kernel, catalog, job.problem, profile);
  });
  // Where its workspace would be too large, that of the members runs the whole.
  if (best != job.kernel) joined.SetKernel(*best).IgnoreError();
}

}  // namespace

// As many as the device takes.
void Scheduler::LaunchAll(Device& device) {
  while (LaunchNext(device)) {
  }
}

bool Scheduler::LaunchNext(Device& device) {
  Ended ended;
  Launch* launch = nullptr;
  bool is_earlier = false;
  {
    MutexLock lock(&mutex_);
    State& state = states_.at(&device);
    launch = TakeNext(state, ended);
    is_earlier = state.held_until_ns < watched_ns_;
    if (is_earlier) watched_ns_ = state.held_until_ns;
  }
  if (is_earlier && deadline_listener_) deadline_listener_();
  if (launch != nullptr) {
    // A copy: once the device has it, it may be done at any time.
    const Job job =
        launch->joined != nullptr ? launch->joined->job() : launch->members.front()->job;
    device.Submit(job, [this, launch](JobOutcome outcome) { OnDone(*launch, std::move(outcome)); });
    AbortIfEnded(job.id, device);
  }
  Finish(std::move(ended));
  return launch != nullptr;
}

// What is to be launched now; null where the device has enough, or nothing waits.
Launch* Scheduler::TakeNext(State& state, Ended& ended) {
  const int64_t now_ns = clock_.NowNs();
  if (!HasRoom(state, now_ns)) return nullptr;
  if (IsHeldBack(state, now_ns)) return nullptr;
  // It begins once the device has done what it has.
  const int64_t begin_ns = now_ns + RestNs(state, now_ns);
  const DeviceQueue::Choice choice = state.queue.TakeNext(begin_ns);
  for (DeviceQueue::Job* const job : choice.too_late) {
    auto& late = static_cast<Submission&>(*job);
    const int64_t left_ns = std::max(late.deadline_ns - begin_ns, int64_t{0});
    late.outcome.status = TooLateForDeadline(late.predicted_ns, left_ns);
    ended.dropped.push_back(Take(late));
  }
  if (choice.next == nullptr) return nullptr;
  auto& held = static_cast<Submission&>(*choice.next);
  Launch& launch = held.own_launch;
  state.running.push_back(&launch);
  launch.id = held.id;
  launch.launched_ns = now_ns;
  launch.begin_ns = begin_ns;
  launch.cost_ns = held.cost_ns;
  launch.members.push_back(&held);
  LeaveQueue(state, held);
  held.launch = &launch;
  Join(Joining::kStacked, state, launch);
  if (launch.joined == nullptr) Join(Joining::kBatched, state, launch);
  const auto others = static_cast<uint64_t>(launch.members.size() - 1);
  ++state.load.launches[std::min<size_t>(std::bit_width(others), kLaunchSizes - 1)];
  return &launch;
}

// Whether the device stays idle for a while, because jobs may come that run with the next one.
bool Scheduler::IsHeldBack(State& state, int64_t now_ns) {
  state.held_until_ns = kNoDeadlineNs;
  if (joins_.window_ns == 0 || !state.running.empty() || state.queue.empty()) return false;
  const auto& next = static_cast<const Submission&>(state.queue.first());
  const auto waiting = [](const auto& by_key, const JoinKey& key) {
    const auto position = by_key.find(key);
    return position == by_key.end() ? int64_t{0} : static_cast<int64_t>(position->second.size());
  };
  const int64_t mates = std::max(waiting(state.stacked, next.keys.stacked),
                                 waiting(state.batched, next.keys.batched));
  if (mates == 0 || mates >= joins_.limits.max_jobs) return false;
  int64_t until_ns = next.submitted_ns + joins_.window_ns;
  if (next.deadline_ns != kNoDeadlineNs) {
    until_ns = std::min(until_ns, next.deadline_ns - SafeNs(next.cost_ns));
  }
  if (until_ns <= now_ns) return false;
  state.held_until_ns = until_ns;
  return true;
}

// The waiting jobs that can run with the first one, oldest first, as many as the limits allow.
std::vector<Submission*> Scheduler::MatesOf(Joining joining, State& state,
                                            const Submission& first) {
  std::vector<Submission*> mates;
  const auto gather = [&](const auto& waiting, const JoinKey& key) {
    const auto position = waiting.find(key);
    if (position == waiting.end()) return;
    const auto& list = position->second;
    const JoinLimits& limits = joins_.limits;
    OverwrittenPlaces places;
    places.Add(first.job);
    int64_t bytes = JoinBytesOf(first.job, joining);
    for (Submission* mate = list.first(); mate != nullptr; mate = list.After(*mate)) {
      if (static_cast<int64_t>(mates.size()) + 1 >= limits.max_jobs) break;
      bytes += JoinBytesOf(mate->job, joining);
      if (bytes > limits.max_bytes) break;
      if (mate->priority != first.priority) continue;
      if (places.Add(mate->job)) mates.push_back(mate);
    }
  };
  if (joining == Joining::kStacked) {
    gather(state.stacked, first.keys.stacked);
  } else {
    gather(state.batched, first.keys.batched);
  }
  return mates;
}

// Adds jobs that wait to one that is about to run, where there are any.
void Scheduler::Join(Joining joining, State& state, Launch& launch) {
  std::vector<Submission*> mates = MatesOf(joining, state, *launch.members.front());
  // Where that would take too long, half of them wait for the next turn.
  for (; !mates.empty(); mates.resize(mates.size() / 2)) {
    std::vector<const Job*> jobs = {&launch.members.front()->job};
    for (const Submission* const mate : mates) jobs.push_back(&mate->job);
    absl::StatusOr<std::unique_ptr<JoinedJob>> joined =
        JoinedJob::Of(joining, last_id_ + 1, std::move(jobs));
    if (!joined.ok()) return;
    ChooseKernel(state.device->profile(), state.choices, **joined);
    int64_t cost_ns = 0;
    if (!CanRunAs(state, launch, mates, **joined, cost_ns)) continue;
    for (Submission* const mate : mates) {
      state.queue.TakeAlso(*mate);
      LeaveQueue(state, *mate);
      mate->launch = &launch;
      launch.members.push_back(mate);
    }
    const auto count = static_cast<int64_t>(launch.members.size());
    (joining == Joining::kStacked ? state.load.stacked_requests : state.load.batched_requests) +=
        count;
    launch.joined = *std::move(joined);
    launch.id = ++last_id_;
    launch.cost_ns = cost_ns;
    return;
  }
}

// Whether all deadlines are safe, and nothing else waits for the device much longer.
bool Scheduler::CanRunAs(const State& state, const Launch& launch,
                         absl::Span<Submission* const> mates, JoinedJob& joined,
                         int64_t& cost_ns) const {
  const Submission& first = *launch.members.front();
  const DeviceProfile& profile = state.device->profile();
  const Job& job = joined.job();
  const int64_t predicted_ns =
      PredictedNs(*job.kernel, job.problem, profile) + PredictedCopyNs(job.problem, profile);
  // What is expected of the first is what its caller's last jobs took beside their predictions.
  const double pace = static_cast<double>(first.cost_ns) /
                      static_cast<double>(std::max(first.predicted_ns, int64_t{1}));
  cost_ns = static_cast<int64_t>(std::max(pace, 1.0) * static_cast<double>(predicted_ns));
  if (cost_ns > std::max(joins_.limits.max_expected_ns, 2 * first.cost_ns)) return false;
  const auto is_safe = [&](const Submission& one) {
    return LeftNs(one.deadline_ns, launch.begin_ns) >= SafeNs(cost_ns);
  };
  return is_safe(first) && std::all_of(mates.begin(), mates.end(),
                                       [&](const Submission* mate) { return is_safe(*mate); });
}

}  // namespace gemmd
