// SPDX-License-Identifier: Apache-2.0
//
// Queues jobs per device, first come first served, and hands each device one at a time.
//
// A job waits, then is launched, then is done; or it is dropped while it waits (cancelled,
// expired). Its callback is called exactly once in every case, never under a lock. The scheduler
// has no thread: it runs in Submit, in Cancel and in the devices' callbacks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/device/device.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// How a job ended. DeadlineExceeded and Cancelled say that it was dropped while it waited and that
// nothing was launched.
struct JobResult {
  JobOutcome outcome;
  int64_t queue_ns = 0;  // From Submit to the start on the device, or to the drop.
};

struct Submission {
  Device* device = nullptr;  // One of the scheduler's devices.
  Job job;
  int64_t bytes = 0;         // Only for the statistics.
  int64_t predicted_ns = 0;  // The predicted time on the device.
  int64_t deadline_ns = kNoDeadlineNs;
  absl::AnyInvocable<void(JobResult) &&> done;
};

struct DeviceLoad {
  int64_t queued_requests = 0;
  int64_t queued_bytes = 0;
  int64_t backlog_ns = 0;  // The predicted time of the waiting jobs and the running one.
  int64_t completed_requests = 0;
};

class Scheduler {
 public:
  // Borrows the devices and the clock; both outlive it. There must be no job left when it is
  // destroyed.
  Scheduler(absl::Span<Device* const> devices, const Clock& clock);

  // Queues a job. Threads: any.
  JobId Submit(Submission submission) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops the job where it still waits, and calls its callback with Cancelled before this returns.
  // Does nothing for other jobs. Threads: any.
  void Cancel(JobId id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops every waiting job; their callbacks get `status`.
  void DropWaiting(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  DeviceLoad load(const Device& device) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    Submission submission;
    int64_t submitted_ns = 0;
  };
  // Ids ascend, so a map by id is a queue in order of arrival from which any job can be taken.
  struct Queue {
    std::map<JobId, Waiting> waiting;
    bool busy = false;
    DeviceLoad load;
  };

  void LaunchNext(Device& device) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(Waiting dropped, absl::Status status) const;
  static Waiting Take(Queue& queue, std::map<JobId, Waiting>::iterator position);

  const Clock& clock_;
  mutable Mutex mutex_;
  JobId last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<const Device*, Queue> queues_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
