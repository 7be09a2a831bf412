// SPDX-License-Identifier: Apache-2.0
//
// A thread that does for the tensors what takes longer than a thread of gRPC may be held: hashing
// what came out of order, giving memory back, ending leases; compressing, on one of its own.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "server/system/mutex.h"

namespace gemmd {

class Background {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // Calls `now_and_then` between the tasks, after each `pause` without one at the latest. `thread`
  // is the thread's name, of 15 characters at most.
  Background(const char* thread, absl::Duration pause, std::function<void()> now_and_then);
  ~Background() { Stop(); }

  // Tasks run one after the other, in their order. Once it is stopped, a task runs at once, where
  // it is posted. Threads: any.
  void Post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs what was posted and ends the thread. Threads: one at a time, not the thread itself.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const char* const name_;
  const absl::Duration pause_;
  const std::function<void()> now_and_then_;
  Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;  // The thread has taken its last task.
  std::thread thread_;
};

}  // namespace gemmd
