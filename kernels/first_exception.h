// SPDX-License-Identifier: Apache-2.0
//
// What the threads of a loop throw, for the thread that called it. Without this an exception that
// leaves a thread ends the process, and memory can run out on any of them.
#pragma once

#include <atomic>
#include <exception>

namespace gemmd {

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

  // Whether something was thrown, so that the rest is in vain. Threads: any.
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
