// SPDX-License-Identifier: Apache-2.0
//
// Counts the allocations of the process; allocation_test.cc has the allocators.
#pragma once

#include <atomic>
#include <cstdint>

namespace gemmd {

// By all threads except those that set `is_uncounted`.
inline std::atomic<int64_t> allocations{0};
inline thread_local bool is_uncounted = false;

inline void CountAllocation() {
  if (!is_uncounted) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace gemmd
