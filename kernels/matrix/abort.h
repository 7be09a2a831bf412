// SPDX-License-Identifier: Apache-2.0
//
// How work that runs on several threads ends early: nobody wants it any more, or one of its threads
// threw an exception.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace gemmd {

// A flag that becomes true, from any thread, once nobody wants the work any more; null: somebody
// always does.
using AbortFlag = const std::atomic<bool>*;

inline bool IsSet(AbortFlag abort) {
  return abort != nullptr && abort->load(std::memory_order_relaxed);
}

// The same for a launch on a GPU, in memory that the GPU reads: nobody wants the work any more once
// the word has the value. Null: somebody always does.
struct AbortWord {
  const uint64_t* word = nullptr;
  uint64_t value = 0;
};

// Hands the first exception of a loop's threads to the thread that called it. Without this an
// exception that leaves a thread ends the process, and memory can run out on any of them.
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

  // Whether something was thrown, so that the rest is unnecessary. Threads: any.
  bool is_there() const { return is_there_.load(std::memory_order_relaxed); }

  // Throws it again, if there is one, once all threads have ended.
  void Rethrow() const {
    if (exception_ != nullptr) std::rethrow_exception(exception_);
  }

 private:
  std::atomic<bool> is_there_{false};
  std::exception_ptr exception_;
};

}  // namespace gemmd
