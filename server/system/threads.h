// SPDX-License-Identifier: Apache-2.0
//
// Threads that do what they are given, whenever they are asked or again and again; work that a
// thread puts off; and the check that the daemon lives.
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

// Threads that do what they are given, in its order.
class ThreadPool {
 public:
  using Work = absl::AnyInvocable<void() &&>;
  // All threads start at once; or one, and others with the work and where the system has them.
  enum class Start : uint8_t { kAtOnce, kWithWork };

  // `name` is that of the threads, of at most 15 characters. Borrowed.
  ThreadPool(const char* name, int threads, Start start = Start::kAtOnce);
  // One thread, which calls `now_and_then` between its work, after each `pause` without any at the
  // latest.
  ThreadPool(const char* name, absl::Duration pause, std::function<void()> now_and_then);
  ~ThreadPool() { Stop(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Most threads.
  int size() const { return max_threads_; }

  // Calls `work` once, from one of the threads; once they have ended, at once. Threads: any.
  void Run(Work work) ABSL_LOCKS_EXCLUDED(mutex_);

  // Does what is left and ends the threads. Threads: one at a time, none of the pool's own.
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
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;  // A thread has found the last work done.
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

// Work that many events on one thread cause, and that is done once for all of them, at the end of a
// Deferral: several products of a stream that end together are one message to send.
class Deferred {
 public:
  virtual ~Deferred() = default;
  virtual void RunDeferred() = 0;
};

// Until its end, what this thread puts off waits. One within another changes nothing. Whatever
// lasts long, or waits for others, has no place in it.
class Deferral {
 public:
  Deferral();
  ~Deferral();
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

  // Has the thread's deferral run it, once, however often it is put off. False where there is no
  // deferral, or it has as many others as it may: the caller then does the work itself.
  static bool PutOff(std::shared_ptr<Deferred> work);

 private:
  std::array<std::shared_ptr<Deferred>, 8> waiting_;
  size_t count_ = 0;
  bool is_outermost_ = false;
};

// Calls a function once for each request, on a thread of its own, so that requests do not wait.
// Requests that come during a call are answered by one more. The destructor waits for a call that
// is under way, and makes none for requests that are left.
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

// Asks again and again whether the daemon does its work, and knows when it last did.
class LifeCheck {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(5);
    absl::Duration longest_silence = absl::Seconds(30);
    // For the check: a thread that is in one turn for longer stands still.
    absl::Duration longest_turn = absl::Seconds(30);
    // Called after each check that passed, from the thread of the checks.
    std::function<void()> on_alive = [] {};

    // For who ends the process where on_alive is not called for so long: checks come three times in
    // that time, so that one late check does no harm, and a thread that stands still ends the
    // process within one and a half of it.
    void TieTo(absl::Duration watchdog) {
      interval = std::min(interval, watchdog / 3);
      longest_turn = std::min(longest_turn, watchdog / 2);
    }
  };

  // Calls `check` in a thread of its own, at once and then after each interval, until the end of
  // the check that runs as this is destroyed. Borrows the clock.
  LifeCheck(Options options, std::function<absl::Status()> check, const Clock& clock);

  // Errors: Unavailable where no check has passed for too long, with what the last one said.
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
