// SPDX-License-Identifier: Apache-2.0
//
// Threads that do the same thing again and again, or whenever they are asked: any function, or a
// check that the daemon lives.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// Calls a function again and again, on a thread of its own, with a pause in between. The destructor
// waits for a call that is under way.
class Periodic {
 public:
  Periodic(absl::Duration pause, std::function<void()> call)
      : pause_(pause), call_(std::move(call)), thread_([this] { Run(); }) {}
  ~Periodic() {
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
    }
    thread_.join();
  }
  Periodic(const Periodic&) = delete;
  Periodic& operator=(const Periodic&) = delete;

 private:
  void Run() {
    while (!WaitForEnd()) call_();
  }
  bool WaitForEnd() {
    MutexLock lock(&mutex_);
    const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_over_; };
    mutex_.AwaitWithTimeout(is_over, pause_);
    return is_over_;
  }

  const absl::Duration pause_;
  const std::function<void()> call_;
  Mutex mutex_;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // The last member: it uses the others.
};

// Calls a function once for each request, on a thread of its own, so that requests do not wait.
// Requests that come during a call are answered by one more. The destructor waits for a call that
// is under way, and makes none for requests that are left.
class OnRequest {
 public:
  explicit OnRequest(std::function<void()> call)
      : call_(std::move(call)), thread_([this] { Run(); }) {}
  ~OnRequest() {
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
    }
    thread_.join();
  }
  OnRequest(const OnRequest&) = delete;
  OnRequest& operator=(const OnRequest&) = delete;

  // Threads: any.
  void Ask() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    is_asked_ = true;
  }

 private:
  void Run() {
    while (WaitForRequest()) call_();
  }
  bool WaitForRequest() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return is_over_ || is_asked_;
    };
    mutex_.Await(has_work);
    is_asked_ = false;
    return !is_over_;
  }

  const std::function<void()> call_;
  Mutex mutex_;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_asked_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // The last member: it uses the others.
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

  // Calls `check` in a thread of its own, at once and then after each interval. Borrows the clock.
  LifeCheck(Options options, std::function<absl::Status()> check, const Clock& clock);

  // Ends after the check that runs now.
  ~LifeCheck();

  // Errors: Unavailable where no check has passed for too long, with what the last one said.
  // Threads: any.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const std::function<absl::Status()> check_;
  const Clock& clock_;
  mutable Mutex mutex_;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t alive_ns_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace gemmd
