// SPDX-License-Identifier: Apache-2.0
//
// Counters that stop at their largest value: one that has wrapped around would be negative, and to
// whoever scrapes it, a restart.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace gemmd {

// The sum of two counts; a negative one counts as none.
inline int64_t SaturatingSum(int64_t x, int64_t y) {
  int64_t sum = 0;
  const bool overflows = __builtin_add_overflow(x < 0 ? 0 : x, y < 0 ? 0 : y, &sum);
  return overflows ? std::numeric_limits<int64_t>::max() : sum;
}

// Threads: any.
inline void AddSaturating(std::atomic<int64_t>& counter, int64_t amount) {
  int64_t before = counter.load(std::memory_order_relaxed);
  while (!counter.compare_exchange_weak(before, SaturatingSum(before, amount),
                                        std::memory_order_relaxed)) {
  }
}

}  // namespace gemmd
