// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/handler_times.h"

#include <time.h>

#include <algorithm>

namespace gemmd {

int64_t HandlerTimer::CpuNs() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void HandlerTimes::Add(Handler handler, int64_t held_ns, int64_t cpu_ns) {
  times_[static_cast<size_t>(handler)].Add(held_ns);
  std::atomic<int64_t>& second_ns = second_longest_ns_[static_cast<size_t>(handler)];
  if (cpu_ns <= second_ns.load(std::memory_order_relaxed)) return;
  const MutexLock lock(&mutex_);
  Longest& longest = longest_[static_cast<size_t>(handler)];
  longest.second_ns = std::max(longest.second_ns, std::min(cpu_ns, longest.first_ns));
  longest.first_ns = std::max(longest.first_ns, cpu_ns);
  second_ns.store(longest.second_ns, std::memory_order_relaxed);
}

HandlerTimes::LongestTimes HandlerTimes::ReadLongestCpu() const {
  const MutexLock lock(&mutex_);
  return longest_;
}

HandlerTimes::Hold HandlerTimes::Take(int64_t since_ns) {
  const int64_t noted = std::max<int64_t>(since_ns, 1);
  for (std::atomic<int64_t>& hold : holds_) {
    int64_t free = 0;
    if (hold.load(std::memory_order_relaxed) == 0 && hold.compare_exchange_strong(free, noted)) {
      return &hold;
    }
  }
  return nullptr;
}

void HandlerTimes::Release(Hold hold) {
  if (hold != nullptr) hold->store(0);
}

std::optional<int64_t> HandlerTimes::oldest_hold_ns() const {
  std::optional<int64_t> oldest;
  for (const std::atomic<int64_t>& hold : holds_) {
    const int64_t since_ns = hold.load();
    if (since_ns != 0 && since_ns < oldest.value_or(since_ns + 1)) oldest = since_ns;
  }
  return oldest;
}

}  // namespace gemmd
