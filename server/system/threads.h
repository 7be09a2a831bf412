// SPDX-License-Identifier: Apache-2.0
//
// Threads that run work on request or periodically; work that a thread defers; and the check that
// the daemon is alive.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// Threads that run work in order of submission.
class ThreadPool {
 public:
  using Work = absl::AnyInvocable<void() &&>;
  // All threads start at once; or one thread, and others when there is work and if the system
  // allows it.
  enum class Start : uint8_t { kAtOnce, kWithWork };

  // `name` is the name of the threads, of at most 15 characters. Borrowed.
  ThreadPool(const char* name, int threads, Start start = Start::kAtOnce);
  // One thread, which calls `now_and_then` between pieces of work, at most `pause` apart while
  // idle.
  ThreadPool(const char* name, absl::Duration pause, std::function<void()> now_and_then);
  ~ThreadPool() { Stop(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Most threads.
  int size() const { return max_threads_; }

  // Calls `work` once, from one of the threads; after they have ended, in the calling thread.
  // Threads: any.
  void Run(Work work) ABSL_LOCKS_EXCLUDED(mutex_);

  // Does the remaining work and ends the threads. Threads: one at a time, none of the pool's own.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);

  const char* const name_;
  const int max_threads_;
  const absl::Duration pause_ = absl::InfiniteDuration();
  const std::function<void()> now_and_then_;
  Mutex mutex_;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> busy_ = 0;  // Threads with work.
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // A thread has seen the end of all work.
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

// Work that is caused by many events on one thread and done once for all of them, at the end of a
// Deferral: for example, several products of a stream that end together are sent as one message.
class Deferred {
 public:
  virtual ~Deferred() = default;
  virtual void RunDeferred() = 0;
};

// Until its end, work that this thread defers waits. A nested one has no effect. Keep it short: no
// long or blocking operations within it.
class Deferral {
 public:
  Deferral();
  ~Deferral();
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

  // Makes the thread's deferral run it, once, however often it is deferred. False if there is no
  // deferral, or it is full: the caller then does the work itself.
  static bool PutOff(std::shared_ptr<Deferred> work);

 private:
  std::array<std::shared_ptr<Deferred>, 8> waiting_;
  size_t count_ = 0;
  bool is_outermost_ = false;
};

// Calls a function on its own thread when requested, so that requests do not wait. Requests during
// a call lead to one more call. The destructor waits for a running call, and ignores pending
// requests.
class OnRequest {
 public:
  explicit OnRequest(std::function<void()> call) : call_(std::move(call)) {}
  ~OnRequest() { is_over_ = true; }

  // Threads: any.
  void Ask() {
    if (is_asked_.exchange(true)) return;
    thread_.Run([this] {
      is_asked_ = false;
      if (!is_over_) call_();
    });
  }

 private:
  const std::function<void()> call_;
  std::atomic<bool> is_asked_ = false;
  std::atomic<bool> is_over_ = false;
  ThreadPool thread_{"gemmd-request", 1};  // The last member: it uses the others.
};

// Checks periodically whether the daemon is alive, and remembers when it last was.
class LifeCheck {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(5);
    absl::Duration longest_silence = absl::Seconds(30);
    // For the check: a thread that takes longer for one turn counts as stalled.
    absl::Duration longest_turn = absl::Seconds(30);
    // Called after each check that passed, from the thread of the checks.
    std::function<void()> on_alive = [] {};

    // For a watchdog that ends the process if on_alive is not called for that long: there are three
    // checks in that time, so that one late check does no harm, and a stalled thread ends the
    // process within one and a half times that time.
    void TieTo(absl::Duration watchdog) {
      interval = std::min(interval, watchdog / 3);
      longest_turn = std::min(longest_turn, watchdog / 2);
    }
  };

  // Calls `check` in its own thread, at once and then after each interval, until destroyed; the
  // destructor waits for a running check. Borrows the clock.
  LifeCheck(Options options, std::function<absl::Status()> check, const Clock& clock);

  // Errors: Unavailable if no check has passed for too long, with the message of the last one.
  // Threads: any.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Check() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::function<absl::Status()> check_;
  const Clock& clock_;
  mutable Mutex mutex_;
  int64_t alive_ns_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_ ABSL_GUARDED_BY(mutex_);
  ThreadPool thread_;  // The last member: it uses the others.
};

}  // namespace gemmd
