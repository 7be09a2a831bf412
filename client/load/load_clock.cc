// SPDX-License-Identifier: Apache-2.0
#include "client/load/load_clock.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

namespace gemmd {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kPatienceNs = 20'000'000;  // How late a stop may be noticed.

}  // namespace

int64_t SteadyNowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecondNs + now.tv_nsec;
}

bool SleepUntil(int64_t time_ns, const StopRequests& stop) {
  while (stop.load(std::memory_order_relaxed) == 0) {
    const int64_t now = SteadyNowNs();
    if (now >= time_ns) return true;
    const int64_t until = std::min(time_ns, now + kPatienceNs);
    const timespec wake = {until / kSecondNs, until % kSecondNs};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
  }
  return false;
}

void WakeThisThreadOnTime() { prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); }

}  // namespace gemmd
