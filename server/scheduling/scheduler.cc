// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/scheduler.h"

#include <cassert>
#include <optional>
#include <utility>

namespace gemmd {

Scheduler::Scheduler(absl::Span<Device* const> devices, const Clock& clock) : clock_(clock) {
  MutexLock lock(&mutex_);
  for (const Device* device : devices) queues_[device];
}

JobId Scheduler::Submit(Submission submission) {
  Device& device = *submission.device;
  JobId id = 0;
  {
    MutexLock lock(&mutex_);
    id = ++last_id_;
    Queue& queue = queues_.at(&device);
    ++queue.load.queued_requests;
    queue.load.queued_bytes += submission.bytes;
    queue.load.backlog_ns += submission.predicted_ns;
    queue.waiting.emplace(id, Waiting{std::move(submission), clock_.NowNs()});
  }
  LaunchNext(device);
  return id;
}

// Takes a job out of its queue; the backlog counts the job until it is done or dropped.
Scheduler::Waiting Scheduler::Take(Queue& queue, std::map<JobId, Waiting>::iterator position) {
  Waiting taken = std::move(position->second);
  queue.waiting.erase(position);
  --queue.load.queued_requests;
  queue.load.queued_bytes -= taken.submission.bytes;
  return taken;
}

void Scheduler::Drop(Waiting dropped, absl::Status status) const {
  JobResult result;
  result.outcome.status = std::move(status);
  result.queue_ns = clock_.NowNs() - dropped.submitted_ns;
  std::move(dropped.submission.done)(std::move(result));
}

void Scheduler::Cancel(JobId id) {
  std::optional<Waiting> cancelled;
  {
    MutexLock lock(&mutex_);
    for (auto& [device, queue] : queues_) {
      const auto position = queue.waiting.find(id);
      if (position == queue.waiting.end()) continue;
      cancelled = Take(queue, position);
      queue.load.backlog_ns -= cancelled->submission.predicted_ns;
      break;
    }
  }
  if (cancelled.has_value()) {
    Drop(*std::move(cancelled), absl::CancelledError("cancelled while it waited for the device"));
  }
}

void Scheduler::DropWaiting(const absl::Status& status) {
  std::vector<Waiting> dropped;
  {
    MutexLock lock(&mutex_);
    for (auto& [device, queue] : queues_) {
      while (!queue.waiting.empty()) {
        dropped.push_back(Take(queue, queue.waiting.begin()));
        queue.load.backlog_ns -= dropped.back().submission.predicted_ns;
      }
    }
  }
  for (Waiting& waiting : dropped) Drop(std::move(waiting), status);
}

void Scheduler::LaunchNext(Device& device) {
  std::vector<Waiting> expired;
  std::optional<Waiting> next;
  int64_t launch_ns = 0;
  {
    MutexLock lock(&mutex_);
    Queue& queue = queues_.at(&device);
    if (queue.busy) return;
    launch_ns = clock_.NowNs();
    while (!queue.waiting.empty() && !next.has_value()) {
      Waiting first = Take(queue, queue.waiting.begin());
      if (first.submission.deadline_ns <= launch_ns) {
        queue.load.backlog_ns -= first.submission.predicted_ns;
        expired.push_back(std::move(first));
      } else {
        next = std::move(first);
      }
    }
    queue.busy = next.has_value();
  }
  for (Waiting& waiting : expired) {
    Drop(std::move(waiting),
         absl::DeadlineExceededError("the deadline passed while it waited for the device"));
  }
  if (!next.has_value()) return;

  const Job job = next->submission.job;
  const int64_t queue_ns = launch_ns - next->submitted_ns;
  device.Submit(job, [this, &device, queue_ns,
                      submission = std::move(next->submission)](JobOutcome outcome) mutable {
    {
      MutexLock lock(&mutex_);
      Queue& queue = queues_.at(&device);
      queue.busy = false;
      queue.load.backlog_ns -= submission.predicted_ns;
      ++queue.load.completed_requests;
    }
    // The device gets its next job first, so that it does not wait while this job's answer is made.
    LaunchNext(device);
    const int64_t waited_ns = queue_ns + outcome.wait_ns;
    std::move(submission.done)(JobResult{std::move(outcome), waited_ns});
  });
}

DeviceLoad Scheduler::load(const Device& device) const {
  MutexLock lock(&mutex_);
  return queues_.at(&device).load;
}

}  // namespace gemmd
