// SPDX-License-Identifier: Apache-2.0
//
// Waits of tests for other threads and processes. Every wait has a limit, so that a hang is a
// failure with a message.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <string_view>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gemmd {

// The limit for anything that must happen eventually: slow machines are not a failure.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Whether the condition became true before the limit. After a while it is checked only once a
// millisecond, to leave the processors to the work.
template <typename Condition>
bool Eventually(Condition condition, absl::Duration limit = kPatience) {
  using Steady = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kTimeToLook(10);
  const Steady::time_point begin = Steady::now();
  while (!condition()) {
    const Steady::duration passed = Steady::now() - begin;
    if (passed > absl::ToChronoNanoseconds(limit)) return false;
    if (passed < kTimeToLook) {
      sched_yield();
    } else {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  return true;
}

// The value of a future. If it does not arrive in time, the process ends, because the other side
// may still use borrowed data. The limit is longer than kPatience, after which servers and
// watchdogs of the tests fail by themselves with a reason.
template <typename T>
T Awaited(std::future<T> future, std::string_view what) {
  constexpr absl::Duration kLimit = absl::Seconds(90);
  if (future.wait_for(absl::ToChronoSeconds(kLimit)) != std::future_status::ready) {
    std::cerr << "Not within " << absl::FormatDuration(kLimit) << ": " << what << std::endl;
    std::abort();
  }
  return future.get();
}

}  // namespace gemmd
