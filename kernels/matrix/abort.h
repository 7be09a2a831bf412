// SPDX-License-Identifier: Apache-2.0
//
// How work on several threads ends early: it is aborted, or one of its threads throws an exception.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace gemmd {

// A flag that any thread sets to abort the work. Null: never aborted.
using AbortFlag = const std::atomic<bool>*;

inline bool IsSet(AbortFlag abort) {
  return abort != nullptr && abort->load(std::memory_order_relaxed);
}

// The same for a launch on a GPU, in memory that the GPU reads: the work is aborted once the word
// has the value. Null: never aborted.
struct AbortWord {
  const uint64_t* word = nullptr;
  uint64_t value = 0;
};

// Passes the first exception of a loop's threads to the calling thread. An exception that leaves a
// thread would end the process, and any thread may run out of memory.
class FirstException {
 public:
  // Calls body(), and keeps what it throws if it is the first. Threads: any.
  template <typename Body>
  void Guard(const Body& body) noexcept {
    try {
      body();
    } catch (...) {
      if (!is_there_.exchange(true)) exception_ = std::current_exception();
    }
  }

  // Whether a thread has thrown, so that the remaining work is unnecessary. Threads: any.
  bool is_there() const { return is_there_.load(std::memory_order_relaxed); }

  // Rethrows the exception, if any. Call once all threads have ended.
  void Rethrow() const {
    if (exception_ != nullptr) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> is_there_{false};
  std::exception_ptr exception_;
};

}  // namespace gemmd
