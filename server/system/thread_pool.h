// SPDX-License-Identifier: Apache-2.0
//
// A fixed number of threads that do what they are given, in its order.
#pragma once

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "server/system/mutex.h"

namespace gemmd {

class ThreadPool {
 public:
  using Work = absl::AnyInvocable<void() &&>;

  // `name` is that of the threads, of at most 15 characters. Borrowed.
  ThreadPool(const char* name, int threads);
  // Does what is left.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Calls `work` once, from one of the threads. Threads: any.
  void Run(Work work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace gemmd
