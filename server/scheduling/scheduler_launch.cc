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
  Job job;
  bool is_earlier = false;
  {
    MutexLock lock(&mutex_);
    State& state = states_.at(&device);
    if (const Running* const running = TakeNext(state, ended)) {
      job = running->joined != nullptr ? running->joined->job()
                                       : running->members.front()->submission.job;
      job.id = running->id;
    }
    is_earlier = state.held_until_ns < watched_ns_;
    if (is_earlier) watched_ns_ = state.held_until_ns;
  }
  if (is_earlier && deadline_listener_) deadline_listener_();
  if (job.id != 0) {
    device.Submit(job, [this, &device, id = job.id](JobOutcome outcome) {
      OnDone(id, device, std::move(outcome));
    });
    AbortIfEnded(job.id, device);
  }
  Finish(std::move(ended));
  return job.id != 0;
}

// What is to be launched now; null where the device has enough, or nothing waits.
Scheduler::Running* Scheduler::TakeNext(State& state, Ended& ended) {
  const int64_t now_ns = clock_.NowNs();
  if (!HasRoom(state, now_ns)) return nullptr;
  if (IsHeldBack(state, now_ns)) return nullptr;
  // It begins once the device has done what it has.
  const int64_t begin_ns = now_ns + RestNs(state, now_ns);
  const DeviceQueue::Choice choice = state.queue.TakeNext(begin_ns);
  for (const DeviceQueue::Job* const late : choice.too_late) {
    const int64_t left_ns = std::max(late->deadline_ns - begin_ns, int64_t{0});
    absl::Status status = TooLateForDeadline(late->predicted_ns, left_ns);
    ended.dropped.emplace_back(Take(jobs_.at(late->id)), std::move(status));
  }
  if (choice.next == nullptr) return nullptr;
  Held& held = jobs_.at(choice.next->id);
  Running& running = state.running.emplace_back();
  running.id = choice.next->id;
  running.launched_ns = now_ns;
  running.begin_ns = begin_ns;
  running.cost_ns = held.place.cost_ns;
  running.members.push_back(&held);
  LeaveQueue(state, held);
  held.running = &running;
  Join(Joining::kStacked, state, running);
  if (running.joined == nullptr) Join(Joining::kBatched, state, running);
  const auto others = static_cast<uint64_t>(running.members.size() - 1);
  ++state.load.launches[std::min<size_t>(std::bit_width(others), kLaunchSizes - 1)];
  return &running;
}

// Whether the device stays idle for a while, because jobs may come that run with the next one.
bool Scheduler::IsHeldBack(State& state, int64_t now_ns) {
  state.held_until_ns = kNoDeadlineNs;
  if (joins_.window_ns == 0 || !state.running.empty() || state.queue.empty()) return false;
  const Held& next = jobs_.at(state.queue.first().id);
  const auto waiting = [](const Waiting& by_key, const std::string& key) {
    const auto position = by_key.find(key);
    return position == by_key.end() ? int64_t{0} : static_cast<int64_t>(position->second.size());
  };
  const int64_t mates = std::max(waiting(state.stacked, next.keys.stacked),
                                 waiting(state.batched, next.keys.batched));
  if (mates == 0 || mates >= joins_.limits.max_jobs) return false;
  int64_t until_ns = next.submitted_ns + joins_.window_ns;
  if (next.place.deadline_ns != kNoDeadlineNs) {
    until_ns = std::min(until_ns, next.place.deadline_ns - SafeNs(next.place.cost_ns));
  }
  if (until_ns <= now_ns) return false;
  state.held_until_ns = until_ns;
  return true;
}

// The waiting jobs that can run with the first one, oldest first, as many as the limits allow.
std::vector<Scheduler::Held*> Scheduler::MatesOf(Joining joining, State& state, const Held& first) {
  std::vector<Held*> mates;
  const bool is_stack = joining == Joining::kStacked;
  const Waiting& waiting = is_stack ? state.stacked : state.batched;
  const auto position = waiting.find(is_stack ? first.keys.stacked : first.keys.batched);
  if (position == waiting.end()) return mates;
  const JoinLimits& limits = joins_.limits;
  OverwrittenPlaces places;
  places.Add(first.submission.job);
  int64_t bytes = JoinBytesOf(first.submission.job, joining);
  for (const JobId id : position->second) {
    if (static_cast<int64_t>(mates.size()) + 1 >= limits.max_jobs) break;
    Held& mate = jobs_.at(id);
    bytes += JoinBytesOf(mate.submission.job, joining);
    if (bytes > limits.max_bytes) break;
    if (mate.place.priority != first.place.priority) continue;
    if (places.Add(mate.submission.job)) mates.push_back(&mate);
  }
  return mates;
}

// Adds jobs that wait to one that is about to run, where there are any.
void Scheduler::Join(Joining joining, State& state, Running& running) {
  std::vector<Held*> mates = MatesOf(joining, state, *running.members.front());
  // Where that would take too long, half of them wait for the next turn.
  for (; !mates.empty(); mates.resize(mates.size() / 2)) {
    std::vector<const Job*> jobs = {&running.members.front()->submission.job};
    for (const Held* const mate : mates) jobs.push_back(&mate->submission.job);
    absl::StatusOr<std::unique_ptr<JoinedJob>> joined =
        JoinedJob::Of(joining, last_id_ + 1, std::move(jobs));
    if (!joined.ok()) return;
    ChooseKernel(state.device->profile(), state.choices, **joined);
    int64_t cost_ns = 0;
    if (!CanRunAs(state, running, mates, **joined, cost_ns)) continue;
    for (Held* const mate : mates) {
      state.queue.TakeAlso(mate->place);
      LeaveQueue(state, *mate);
      mate->running = &running;
      running.members.push_back(mate);
    }
    const auto count = static_cast<int64_t>(running.members.size());
    (joining == Joining::kStacked ? state.load.stacked_requests : state.load.batched_requests) +=
        count;
    running.joined = *std::move(joined);
    running.id = ++last_id_;
    running.cost_ns = cost_ns;
    return;
  }
}

// Whether all deadlines are safe, and nothing else waits for the device much longer.
bool Scheduler::CanRunAs(const State& state, const Running& running, absl::Span<Held* const> mates,
                         JoinedJob& joined, int64_t& cost_ns) const {
  const DeviceQueue::Job& first = running.members.front()->place;
  const DeviceProfile& profile = state.device->profile();
  const Job& job = joined.job();
  const int64_t predicted_ns =
      PredictedNs(*job.kernel, job.problem, profile) + PredictedCopyNs(job.problem, profile);
  // What is expected of the first is what its caller's last jobs took beside their predictions.
  const double pace = static_cast<double>(first.cost_ns) /
                      static_cast<double>(std::max(first.predicted_ns, int64_t{1}));
  cost_ns = static_cast<int64_t>(std::max(pace, 1.0) * static_cast<double>(predicted_ns));
  if (cost_ns > std::max(joins_.limits.max_expected_ns, 2 * first.cost_ns)) return false;
  const auto is_safe = [&](const DeviceQueue::Job& place) {
    return LeftNs(place.deadline_ns, running.begin_ns) >= SafeNs(cost_ns);
  };
  return is_safe(first) && std::all_of(mates.begin(), mates.end(),
                                       [&](const Held* mate) { return is_safe(mate->place); });
}

}  // namespace gemmd
