// SPDX-License-Identifier: Apache-2.0
//
// The threads that check answers: neither the devices' own nor gRPC's. What waits for them is
// bounded by admission, whose room a product keeps until it is answered.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "kernels/verify/checked_product.h"
#include "server/device/job.h"
#include "server/system/mutex.h"

namespace gemmd {

class VerifyThreads {
 public:
  // Ends early once the flag is set.
  using Work = absl::AnyInvocable<void(verify::Draw& draw, AbortFlag abort) &&>;

  // One thread starts at once, others with the work and where the system has them. 0: a quarter of
  // the processors, at least one.
  explicit VerifyThreads(int threads);
  // Does what is left, told to end early.
  ~VerifyThreads();
  VerifyThreads(const VerifyThreads&) = delete;
  VerifyThreads& operator=(const VerifyThreads&) = delete;

  // Calls `work` once, from one of the threads. Threads: any.
  void Submit(JobId id, Work work) ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells the work of these ids to end, whether it waits or runs. Threads: any.
  void Cancel(absl::Span<const JobId> ids) ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells all work to end, and all that comes later. Threads: any.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Task {
    JobId id = 0;
    Work work;
    std::atomic<bool> abort = false;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const int most_threads_;
  Mutex mutex_;
  std::list<Task> waiting_ ABSL_GUARDED_BY(mutex_);
  std::list<Task> running_ ABSL_GUARDED_BY(mutex_);
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
