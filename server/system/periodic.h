// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
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

}  // namespace gemmd
