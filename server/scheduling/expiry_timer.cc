// SPDX-License-Identifier: Apache-2.0
#include "server/scheduling/expiry_timer.h"

#include <pthread.h>

#include <algorithm>

namespace gemmd {

ExpiryTimer::ExpiryTimer(Scheduler& scheduler, const Clock& clock)
    : scheduler_(scheduler), clock_(clock) {
  scheduler_.WatchDeadlines([this] {
    MutexLock lock(&mutex_);
    is_earlier_ = true;
  });
  thread_ = std::thread([this] { Run(); });
}

ExpiryTimer::~ExpiryTimer() {
  {
    MutexLock lock(&mutex_);
    is_over_ = true;
  }
  thread_.join();
  scheduler_.WatchDeadlines(nullptr);
}

void ExpiryTimer::Run() {
  pthread_setname_np(pthread_self(), "gemmd-expiry");
  while (true) {
    const int64_t next_ns = scheduler_.EndExpired();
    const auto is_wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return is_earlier_ || is_over_;
    };
    const int64_t wait_ns = std::max(next_ns - clock_.NowNs(), int64_t{0});
    MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(is_wanted, absl::Nanoseconds(wait_ns));
    if (is_over_) return;
    is_earlier_ = false;
  }
}

}  // namespace gemmd
