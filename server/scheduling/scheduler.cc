// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/scheduler.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>

#include "kernels/text.h"

namespace gemmd {
namespace {

absl::Status Cancelled() { return absl::CancelledError("cancelled"); }
absl::Status Expired() { return absl::DeadlineExceededError("the deadline passed"); }

absl::Status Annotated(const absl::Status& why, std::string_view when) {
  return absl::Status(why.code(), Concat(std::string(why.message()), when));
}

// How one of several jobs ended that ran as one, but for its part of the D that the device gave.
JobOutcome OutcomeOfMember(JobOutcome& whole, size_t index) {
  if (!whole.members.empty()) return std::move(whole.members[index]);
  return {.status = whole.status,
          .wait_ns = whole.wait_ns,
          .copy_in_ns = whole.copy_in_ns,
          .compute_ns = whole.compute_ns,
          .copy_out_ns = whole.copy_out_ns,
          .kernel = whole.kernel};
}

template <typename List>
auto FindById(List& all, JobId id) {
  return std::find_if(all.begin(), all.end(), [id](const auto& one) { return one.id == id; });
}

}  // namespace

Scheduler::Scheduler(absl::Span<Device* const> devices, const Clock& clock, TimeLimits limits,
                     JoinRules joins)
    : clock_(clock), limits_(limits), joins_(joins) {
  MutexLock lock(&mutex_);
  for (Device* device : devices) states_[device].device = device;
}

bool Scheduler::IsEnded(const Running& running) {
  return std::all_of(running.members.begin(), running.members.end(),
                     [](const Held* held) { return !held->end.ok(); });
}

// When the device began with what it has had for the longest: it works on one after the other, as
// far as the times of jobs go.
int64_t Scheduler::BeginNs(const State& state) {
  return std::max(state.running.front().launched_ns, state.last_end_ns);
}

// The rest of what runs. A job that has taken longer than predicted is expected to go on for as
// long again as it is late: the longer a prediction has been wrong, the less it is worth. An abort
// takes next to no time.
int64_t Scheduler::RestNs(const State& state, int64_t now_ns) {
  int64_t rest_ns = 0;
  for (const Running& running : state.running) {
    if (IsEnded(running)) continue;
    const bool is_first = &running == &state.running.front();
    const int64_t ran_ns = is_first ? now_ns - BeginNs(state) : 0;
    rest_ns += std::abs(running.cost_ns - ran_ns);
  }
  return rest_ns;
}

// Whether the device is to have the next of the jobs that wait.
bool Scheduler::HasRoom(State& state, int64_t now_ns) const {
  if (state.queue.empty()) return false;
  if (state.running.empty()) return true;
  if (static_cast<int>(state.running.size()) >= state.device->depth()) return false;
  const Submission& next = jobs_.at(state.queue.first().id).submission;
  const int64_t least_ns = std::min(state.light.LeastOfOthers({.caller = next.flow}, now_ns),
                                    state.lone.LeastOfOthers(next.flow_id(), now_ns));
  return RestNs(state, now_ns) <= std::clamp(least_ns, kLeastAheadNs, kMostAheadNs);
}

TimeRefusal Scheduler::Check(const Device& device, const FlowId& flow, Priority priority,
                             int64_t predicted_ns, int64_t expected_ns, int64_t deadline_ns) const {
  TimeAsked asked = {.predicted_ns = predicted_ns};
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    const State& state = states_.at(&device);
    asked.left_ns = LeftNs(deadline_ns, now_ns);
    asked.expected_ns = state.queue.ExpectedNs(flow, priority, expected_ns);
    asked.running_ns = RestNs(state, now_ns);
    const int64_t enough_ns = std::min(asked.left_ns, limits_.max_backlog_ns);
    const FairQueue::Ahead ahead = state.queue.AheadOf(flow, priority, enough_ns);
    asked.ahead_ns = ahead.waiting_ns;
    asked.to_come_ns = ahead.to_come_ns;
  }
  return CheckTime(asked, limits_);
}

JobId Scheduler::Submit(Submission submission) {
  Device& device = *submission.device;
  JobId id = 0;
  bool is_earlier = false;
  bool has_room = false;
  absl::Status stopped;
  JoinKeys keys = JoinKeysOf(submission.job);
  {
    MutexLock lock(&mutex_);
    // What follows a job has its id, so that whoever ends the one ends the other.
    id = submission.job.id != 0 ? submission.job.id : ++last_id_;
    stopped = stopped_;
    if (stopped.ok()) {
      State& state = states_.at(&device);
      Held& held = jobs_[id];
      held.submission = std::move(submission);
      held.submission.job.id = id;
      held.submitted_ns = clock_.NowNs();
      held.place.id = id;
      held.place.predicted_ns = held.submission.predicted_ns;
      held.place.expected_ns = held.submission.expected_ns;
      held.place.deadline_ns = held.submission.deadline_ns;
      held.place.priority = held.submission.priority;
      held.place.share = held.submission.share;
      held.keys = std::move(keys);
      const FlowId flow = held.submission.flow_id();
      held.place.is_promised = state.queue.AheadNs(flow, held.submission.priority, 0) == 0;
      state.queue.Add(flow, held.place);
      state.light.Add({.caller = flow.caller}, held.place.predicted_ns, held.submitted_ns);
      if (held.place.is_lone) state.lone.Add(flow, held.place.predicted_ns, held.submitted_ns);
      has_room = !held.submission.has_company && HasRoom(state, held.submitted_ns);
      if (!held.keys.stacked.empty()) state.stacked[held.keys.stacked].insert(id);
      if (!held.keys.batched.empty()) state.batched[held.keys.batched].insert(id);
      ++state.load.queued_requests;
      state.load.queued_bytes += held.submission.bytes;
      if (held.place.deadline_ns != kNoDeadlineNs) {
        deadlines_.emplace(held.place.deadline_ns, id);
        is_earlier = held.place.deadline_ns < watched_ns_;
        if (is_earlier) watched_ns_ = held.place.deadline_ns;
      }
    }
  }
  if (!stopped.ok()) {
    JobResult result;
    result.outcome.status = std::move(stopped);
    std::move(submission.done)(std::move(result));
    return id;
  }
  if (is_earlier && deadline_listener_) deadline_listener_();
  // A device that has enough gets more once it has done some of that.
  if (has_room) LaunchAll(device);
  return id;
}

void Scheduler::LaunchCompany() {
  std::vector<Device*> due;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    for (auto& [device, state] : states_) {
      if (HasRoom(state, now_ns)) due.push_back(state.device);
    }
  }
  for (Device* const device : due) LaunchAll(*device);
}

// The job does not wait any longer.
void Scheduler::LeaveQueue(State& state, Held& held) {
  --state.load.queued_requests;
  state.load.queued_bytes -= held.submission.bytes;
  const auto unlist = [&](Waiting& waiting, const std::string& key) {
    const auto position = waiting.find(key);
    if (position == waiting.end()) return;
    position->second.erase(held.place.id);
    if (position->second.empty()) waiting.erase(position);
  };
  unlist(state.stacked, held.keys.stacked);
  unlist(state.batched, held.keys.batched);
}

Scheduler::Jobs::node_type Scheduler::Take(Held& held) {
  const JobId id = held.place.id;
  if (held.place.deadline_ns != kNoDeadlineNs) deadlines_.erase({held.place.deadline_ns, id});
  if (held.running == nullptr) LeaveQueue(states_.at(held.submission.device), held);
  return jobs_.extract(id);
}

// Ends a job early: at once where it waits, and by its device where it runs.
void Scheduler::End(Held& held, const absl::Status& why, Ended& ended) {
  if (held.running == nullptr) {
    states_.at(held.submission.device).queue.Remove(held.place);
    absl::Status status = Annotated(why, " while it waited for the device");
    ended.dropped.emplace_back(Take(held), std::move(status));
    return;
  }
  if (!held.end.ok()) return;  // It is being aborted already.
  held.end = Annotated(why, " while it ran");
  // A job that is on its way to the device is aborted once it is there, and several that run as one
  // once nobody waits for any of them.
  Running& running = *held.running;
  if (!IsEnded(running)) return;
  running.unwanted_ns = clock_.NowNs();
  if (running.is_on_device) {
    ended.aborted.emplace_back(held.submission.device, running.id);
  }
}

void Scheduler::Finish(Ended ended) const {
  // Devices first: their time is the dearest.
  for (const auto& [device, id] : ended.aborted) device->Abort(id);
  for (auto& [node, status] : ended.dropped) {
    Held& held = node.mapped();
    JobResult result;
    result.outcome.status = std::move(status);
    result.queue_ns = clock_.NowNs() - held.submitted_ns;
    std::move(held.submission.done)(std::move(result));
  }
}

void Scheduler::Cancel(absl::Span<const JobId> ids) {
  Ended ended;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    for (const JobId id : ids) {
      const auto position = jobs_.find(id);
      if (position == jobs_.end()) continue;
      // gRPC cancels a call whose deadline has passed.
      const bool is_late = position->second.place.deadline_ns <= now_ns;
      End(position->second, is_late ? Expired() : Cancelled(), ended);
    }
  }
  Finish(std::move(ended));
}

int64_t Scheduler::EndExpired() {
  Ended ended;
  std::vector<Device*> due;
  int64_t next_ns = kNoDeadlineNs;
  {
    MutexLock lock(&mutex_);
    const int64_t now_ns = clock_.NowNs();
    while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
      Held& held = jobs_.at(deadlines_.begin()->second);
      deadlines_.erase(deadlines_.begin());
      End(held, Expired(), ended);
    }
    if (!deadlines_.empty()) next_ns = deadlines_.begin()->first;
    for (auto& [device, state] : states_) {
      if (state.held_until_ns <= now_ns) {
        state.held_until_ns = kNoDeadlineNs;
        due.push_back(state.device);
      }
      next_ns = std::min(next_ns, state.held_until_ns);
    }
    watched_ns_ = next_ns;
  }
  for (Device* const device : due) LaunchAll(*device);
  Finish(std::move(ended));
  return next_ns;
}

void Scheduler::Stop(const absl::Status& status) {
  Ended ended;
  {
    MutexLock lock(&mutex_);
    stopped_ = status;
    std::vector<JobId> ids;
    for (const auto& [id, held] : jobs_) ids.push_back(id);
    std::sort(ids.begin(), ids.end());
    for (const JobId id : ids) End(jobs_.at(id), status, ended);
  }
  Finish(std::move(ended));
}

// The device has the job from now on. Somebody may have ended it on its way there.
void Scheduler::AbortIfEnded(JobId id, Device& device) {
  {
    MutexLock lock(&mutex_);
    std::list<Running>& all = states_.at(&device).running;
    const auto position = FindById(all, id);
    if (position == all.end()) return;  // It is done already.
    position->is_on_device = true;
    if (!IsEnded(*position)) return;
  }
  device.Abort(id);
}

void Scheduler::OnDone(JobId id, Device& device, JobOutcome outcome) {
  std::list<Running> done;
  std::vector<Jobs::node_type> nodes;
  {
    MutexLock lock(&mutex_);
    State& state = states_.at(&device);
    const auto position = FindById(state.running, id);
    assert(position != state.running.end());
    done.splice(done.end(), state.running, position);
    const Running& running = done.front();
    const int64_t now_ns = clock_.NowNs();
    // What the device had beside it counts once.
    const int64_t ran_ns = now_ns - std::max(running.launched_ns, state.last_end_ns);
    state.last_end_ns = now_ns;
    if (running.unwanted_ns.has_value()) state.aborts.Add(now_ns - *running.unwanted_ns);
    // Several that ran as one say nothing of what one of them would have taken.
    const bool is_whole = outcome.status.ok() && running.joined == nullptr;
    const auto count = static_cast<int64_t>(running.members.size());
    for (Held* const held : running.members) {
      state.queue.End(held->place, ran_ns / count, is_whole);
      nodes.push_back(Take(*held));
    }
    state.load.busy_ns += ran_ns;
    state.load.completed_requests += count;
  }
  // The device gets its next job first, so that it does not wait while this job's answer is made.
  LaunchAll(device);
  Answer(done.front(), std::move(nodes), std::move(outcome));
}

void Scheduler::Answer(const Running& running, std::vector<Jobs::node_type> nodes,
                       JobOutcome outcome) {
  if (running.joined != nullptr && outcome.members.empty()) {
    outcome.kernel = running.joined->job().kernel;
  }
  std::vector<absl::StatusOr<HeldBytes>> parts;
  if (running.joined != nullptr && !outcome.d.bytes().empty()) {
    parts = running.joined->Split(outcome.d.bytes());
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    Held& held = nodes[i].mapped();
    JobResult result;
    result.id = nodes[i].key();
    result.joined = static_cast<int64_t>(nodes.size());
    result.outcome = running.joined == nullptr ? std::move(outcome) : OutcomeOfMember(outcome, i);
    if (!parts.empty() && result.outcome.status.ok()) {
      result.outcome.status = parts[i].status();
      if (parts[i].ok()) result.outcome.d = *std::move(parts[i]);
    }
    // Where the abort came too late, or the device was lost first, its own answer is the truth.
    if (absl::IsCancelled(result.outcome.status) && !held.end.ok()) {
      result.outcome.status = std::move(held.end);
    }
    result.queue_ns = running.launched_ns - held.submitted_ns + result.outcome.wait_ns;
    std::move(held.submission.done)(std::move(result));
  }
}

DeviceLoad Scheduler::load(const Device& device) const {
  MutexLock lock(&mutex_);
  const State& state = states_.at(&device);
  DeviceLoad load = state.load;
  load.aborts = state.aborts.Read();
  const int64_t now_ns = clock_.NowNs();
  load.backlog_ns = state.queue.waiting_ns() + RestNs(state, now_ns);
  if (!state.running.empty()) load.busy_ns += now_ns - BeginNs(state);
  return load;
}

FairQueue::Inside Scheduler::InsideOf(const FlowId& flow) const {
  MutexLock lock(&mutex_);
  FairQueue::Inside inside;
  for (const auto& [device, state] : states_) {
    const FairQueue::Inside here = state.queue.InsideOf(flow);
    inside.of_caller += here.of_caller;
    inside.of_connection += here.of_connection;
  }
  return inside;
}

}  // namespace gemmd
