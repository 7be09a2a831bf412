// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/scheduler.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>

#include "kernels/text.h"
#include "server/system/deferral.h"

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

// The job's submitter gets it back.
void GiveBack(std::unique_ptr<Submission> job) {
  Submission::Done done = std::move(job->done);
  std::move(done)(std::move(job));
}

}  // namespace

Scheduler::Scheduler(absl::Span<Device* const> devices, const Clock& clock, TimeLimits limits,
                     JoinRules joins)
    : clock_(clock), limits_(limits), joins_(joins) {
  MutexLock lock(&mutex_);
  for (Device* device : devices) states_[device].device = device;
}

bool Scheduler::IsEnded(const Launch& launch) {
  return std::all_of(launch.members.begin(), launch.members.end(),
                     [](const Submission* held) { return !held->end.ok(); });
}

// When the device began with what it has had for the longest: it works on one after the other, as
// far as the times of jobs go.
int64_t Scheduler::BeginNs(const State& state) {
  return std::max(state.running.front()->launched_ns, state.last_end_ns);
}

// The rest of what runs. A job that has taken longer than predicted is expected to go on for as
// long again as it is late: the longer a prediction has been wrong, the less it is worth. An abort
// takes next to no time.
int64_t Scheduler::RestNs(const State& state, int64_t now_ns) {
  int64_t rest_ns = 0;
  for (const Launch* const launch : state.running) {
    if (IsEnded(*launch)) continue;
    const bool is_first = launch == state.running.front();
    const int64_t ran_ns = is_first ? now_ns - BeginNs(state) : 0;
    rest_ns += std::abs(launch->cost_ns - ran_ns);
  }
  return rest_ns;
}

// Whether the device is to have the next of the jobs that wait.
bool Scheduler::HasRoom(State& state, int64_t now_ns) const {
  if (state.queue.empty()) return false;
  if (state.running.empty()) return true;
  if (static_cast<int>(state.running.size()) >= state.device->depth()) return false;
  const auto& next = static_cast<const Submission&>(state.queue.first());
  const int64_t least_ns = std::min(state.light.LeastOfOthers({.caller = next.caller}, now_ns),
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

JobId Scheduler::Submit(std::unique_ptr<Submission> submission) {
  Submission& held = *submission;
  Device& device = *held.device;
  JobId id = 0;
  bool is_earlier = false;
  bool has_room = false;
  held.keys = JoinKeysOf(held.job);
  {
    MutexLock lock(&mutex_);
    // What follows a job has its id, so that whoever ends the one ends the other.
    if (held.id == 0) held.id = ++last_id_;
    id = held.job.id = held.id;
    held.outcome.status = stopped_;
    if (stopped_.ok()) {
      State& state = states_.at(&device);
      jobs_[id] = std::move(submission);
      held.submitted_ns = clock_.NowNs();
      const FlowId flow = held.flow_id();
      held.is_promised = state.queue.AheadNs(flow, held.priority, 0) == 0;
      state.queue.Add(flow, held);
      state.light.Add({.caller = flow.caller}, held.predicted_ns, held.submitted_ns);
      if (held.is_lone) state.lone.Add(flow, held.predicted_ns, held.submitted_ns);
      has_room = !held.has_company && HasRoom(state, held.submitted_ns);
      if (!held.keys.stacked.empty()) state.stacked[held.keys.stacked].Insert(held);
      if (!held.keys.batched.empty()) state.batched[held.keys.batched].Insert(held);
      ++state.load.queued_requests;
      state.load.queued_bytes += held.bytes;
      if (held.deadline_ns != kNoDeadlineNs) {
        deadlines_.emplace(held.deadline_ns, id);
        is_earlier = held.deadline_ns < watched_ns_;
        if (is_earlier) watched_ns_ = held.deadline_ns;
      }
    }
  }
  if (submission != nullptr) {
    GiveBack(std::move(submission));
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
void Scheduler::LeaveQueue(State& state, Submission& held) {
  --state.load.queued_requests;
  state.load.queued_bytes -= held.bytes;
  const auto unlist = [&](auto& waiting, const JoinKey& key) {
    const auto position = waiting.find(key);
    if (position == waiting.end()) return;
    position->second.Remove(held);
    if (position->second.empty()) waiting.erase(position);
  };
  unlist(state.stacked, held.keys.stacked);
  unlist(state.batched, held.keys.batched);
}

std::unique_ptr<Submission> Scheduler::Take(Submission& held) {
  if (held.deadline_ns != kNoDeadlineNs) deadlines_.erase({held.deadline_ns, held.id});
  if (held.launch == nullptr) LeaveQueue(states_.at(held.device), held);
  const auto position = jobs_.find(held.id);
  std::unique_ptr<Submission> taken = std::move(position->second);
  jobs_.erase(position);
  return taken;
}

// Ends a job early: at once where it waits, and by its device where it runs.
void Scheduler::End(Submission& held, const absl::Status& why, Ended& ended) {
  if (held.launch == nullptr) {
    states_.at(held.device).queue.Remove(held);
    held.outcome.status = Annotated(why, " while it waited for the device");
    ended.dropped.push_back(Take(held));
    return;
  }
  if (!held.end.ok()) return;  // It is being aborted already.
  held.end = Annotated(why, " while it ran");
  // A job that is on its way to the device is aborted once it is there, and several that run as one
  // once nobody waits for any of them.
  Launch& launch = *held.launch;
  if (!IsEnded(launch)) return;
  launch.unwanted_ns = clock_.NowNs();
  if (launch.is_on_device) ended.aborted.emplace_back(held.device, launch.id);
}

void Scheduler::Finish(Ended ended) const {
  // Abort on devices first: device time is the most expensive.
  for (const auto& [device, id] : ended.aborted) device->Abort(id);
  for (std::unique_ptr<Submission>& held : ended.dropped) {
    held->queue_ns = clock_.NowNs() - held->submitted_ns;
    GiveBack(std::move(held));
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
      Submission& held = *position->second;
      const bool is_late = held.deadline_ns <= now_ns;
      End(held, is_late ? Expired() : Cancelled(), ended);
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
      Submission& held = *jobs_.at(deadlines_.begin()->second);
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
    for (const JobId id : ids) End(*jobs_.at(id), status, ended);
  }
  Finish(std::move(ended));
}

// The device has the job from now on. Somebody may have ended it on its way there.
void Scheduler::AbortIfEnded(JobId id, Device& device) {
  {
    MutexLock lock(&mutex_);
    const std::vector<Launch*>& all = states_.at(&device).running;
    const auto position = std::find_if(all.begin(), all.end(),
                                       [id](const Launch* launch) { return launch->id == id; });
    if (position == all.end()) return;  // It is done already.
    (*position)->is_on_device = true;
    if (!IsEnded(**position)) return;
  }
  device.Abort(id);
}

void Scheduler::OnDone(Launch& launch, JobOutcome outcome) {
  Device& device = *launch.members.front()->device;
  std::unique_ptr<JoinedJob> joined;
  EndedJobs jobs;
  {
    MutexLock lock(&mutex_);
    State& state = states_.at(&device);
    std::erase(state.running, &launch);
    const int64_t now_ns = clock_.NowNs();
    // What the device had beside it counts once.
    const int64_t ran_ns = now_ns - std::max(launch.launched_ns, state.last_end_ns);
    state.last_end_ns = now_ns;
    if (launch.unwanted_ns.has_value()) state.aborts.Add(now_ns - *launch.unwanted_ns);
    joined = std::move(launch.joined);
    // Several that ran as one say nothing of what one of them would have taken.
    const bool is_whole = outcome.status.ok() && joined == nullptr;
    const auto count = static_cast<int64_t>(launch.members.size());
    for (Submission* const held : launch.members) {
      state.queue.End(*held, ran_ns / count, is_whole);
      held->queue_ns = launch.launched_ns - held->submitted_ns;
      held->joined = count;
      jobs.push_back(Take(*held));
    }
    state.load.busy_ns += ran_ns;
    state.load.completed_requests += count;
  }
  // The device gets its next job first, so that it does not wait while this job's answer is made.
  LaunchAll(device);
  Answer(std::move(joined), std::move(jobs), std::move(outcome));
}

void Scheduler::Answer(std::unique_ptr<JoinedJob> joined, EndedJobs jobs, JobOutcome outcome) {
  const Deferral deferral;
  if (joined != nullptr && outcome.members.empty()) outcome.kernel = joined->job().kernel;
  std::vector<absl::StatusOr<HeldBytes>> parts;
  if (joined != nullptr && !outcome.d.bytes().empty()) parts = joined->Split(outcome.d.bytes());
  for (size_t i = 0; i < jobs.size(); ++i) {
    Submission& held = *jobs[i];
    held.outcome = joined == nullptr ? std::move(outcome) : OutcomeOfMember(outcome, i);
    absl::Status& status = held.outcome.status;
    if (!parts.empty() && status.ok()) {
      status = parts[i].status();
      if (parts[i].ok()) held.outcome.d = *std::move(parts[i]);
    }
    // Where the abort came too late, or the device was lost first, its own answer is the truth.
    if (absl::IsCancelled(status) && !held.end.ok()) status = std::move(held.end);
    held.queue_ns += held.outcome.wait_ns;
    GiveBack(std::move(jobs[i]));
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
