// SPDX-License-Identifier: Apache-2.0
//
// Waits of tests for what other threads and processes do. Every wait has an end, so that what hangs
// is a failure with a message.
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

// Time for everything that must happen in the end: slow machines are no failure.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Whether the condition came to hold before the limit. What takes long is asked for once a
// millisecond, so that it has the processors.
template <typename Condition>
bool Eventually(Condition condition, absl::Duration limit = kPatience) {
  using SteadyTime = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kTimeToLook(10);
  const SteadyTime::time_point begin = SteadyTime::now();
  while (!condition()) {
    const SteadyTime::duration passed = SteadyTime::now() - begin;
    if (passed > absl::ToChronoNanoseconds(limit)) return false;
    if (passed < kTimeToLook) {
      sched_yield();
    } else {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  return true;
}

// The value of a future. Where it does not come in time, the process ends: what the other side has
// borrowed must not go away. The limit is longer than kPatience, after which servers and watchdogs
// of the tests give up by themselves and say why.
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
