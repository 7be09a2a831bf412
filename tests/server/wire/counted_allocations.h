// SPDX-License-Identifier: Apache-2.0
//
// Counts the allocations of the process; allocation_test.cc has the allocators.
#pragma once

#include <atomic>
#include <cstdint>

#include "server/system/mutex.h"

namespace gemmd {

// By all threads except those that set `is_uncounted`; also those made while a Mutex is held.
inline std::atomic<int64_t> allocations{0};
inline std::atomic<int64_t> allocations_under_locks{0};
inline thread_local bool is_uncounted = false;

inline void CountAllocation() {
  if (is_uncounted) return;
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (Mutex::held() > 0) allocations_under_locks.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace gemmd
