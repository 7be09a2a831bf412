// SPDX-License-Identifier: Apache-2.0
//
// Threads that copy large matrices, several at once: one alone does not reach what the memory of
// the host can do.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "server/device/job.h"
#include "server/system/mutex.h"

namespace gemmd {

// Bytes that are copied.
struct CopiedBytes {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
  // Not null: is told that this piece of its source has been copied, unless it is a long one.
  PieceKeeper* keeper = nullptr;
  size_t piece = 0;
};

// Copies on the calling thread.
void CopyAll(const std::vector<CopiedBytes>& copies);

class CopyThreads {
 public:
  using Work = absl::AnyInvocable<void() &&>;

  // One for four processors, at most four.
  static int DefaultThreads();

  explicit CopyThreads(int threads);
  // Does what is left.
  ~CopyThreads();

  // Does the work.
  void Run(Work work) ABSL_LOCKS_EXCLUDED(mutex_);
  // Copies, until `is_aborted`; then calls `done` from one of the threads. Borrows the flag. In the
  // order of the calls, each with all threads.
  void Copy(std::vector<CopiedBytes> copies, const std::atomic<bool>& is_aborted, Work done)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Copying;
  struct Task {
    Work work;  // Or, where there is none:
    std::shared_ptr<Copying> copying;
  };

  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);
  void Share(Copying& copying);

  Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace gemmd
