// SPDX-License-Identifier: Apache-2.0
//
// A mutex that supports clang's -Wthread-safety and waiting for conditions, like absl::Mutex. It is
// based on std::mutex, because ThreadSanitizer cannot see into the Abseil of a distribution and
// would report every field that an absl::Mutex guards.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace gemmd {

// For a thread that polls: yields the core to its hyperthread sibling for a few nanoseconds.
inline void PauseProcessor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // Most holders are done within a microsecond, and sleeping takes many: so it first tries for a
  // while, with increasing pauses, because each try disturbs the holder.
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (int pauses = 1, tries = 0; tries < kTries; ++tries) {
      if (mutex_.try_lock()) {
        ++held_;
        return;
      }
      for (int i = 0; i < pauses; ++i) PauseProcessor();
      pauses = std::min(2 * pauses, kLongestPause);
    }
    mutex_.lock();
    ++held_;
  }

  // Every waiter checks its condition again. Waiters are notified while the mutex is locked,
  // because a waiter may destroy the mutex as soon as it has locked it.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    changed_.notify_all();
    --held_;
    mutex_.unlock();
  }

  // Unlocks while it waits until `condition()`, which is called with the mutex locked, is true.
  // Other waiters check theirs first, as after Unlock.
  template <typename Condition>
  void Await(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    changed_.notify_all();
    std::unique_lock<std::mutex> held(mutex_, std::adopt_lock);
    changed_.wait(held, condition);
    held.release();
  }

  // Waits like Await, but for at most `timeout`; returns whether the condition is true.
  template <typename Condition>
  bool AwaitWithTimeout(Condition condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    // An infinite duration would overflow when added to now.
    const auto limited = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
    changed_.notify_all();
    std::unique_lock<std::mutex> held(mutex_, std::adopt_lock);
    const bool result = changed_.wait_for(held, limited, condition);
    held.release();
    return result;
  }

  // The number of these mutexes that the calling thread holds. For tests.
  static int held() { return held_; }

 private:
  // A few microseconds in total.
  static constexpr int kTries = 12;
  static constexpr int kLongestPause = 16;
  inline static thread_local int held_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(*mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace gemmd
