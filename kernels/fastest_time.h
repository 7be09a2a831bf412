// SPDX-License-Identifier: Apache-2.0
//
// How long work takes that runs on the calling thread alone, on a machine that does other work too.
#pragma once

#include <algorithm>
#include <ctime>
#include <limits>

namespace gemmd {

// The time that the calling thread had a processor for. Unlike a wall clock's, it does not go on
// while other threads have it.
inline double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <typename Function, typename Clock>
double SecondsOf(int calls, const Function& function, const Clock& clock) {
  const double start = clock();
  for (int i = 0; i < calls; ++i) function();
  return clock() - start;
}

// The shortest time of several calls, after one that warms caches. They end when the two shortest
// agree, or when `most_seconds` are over. Calls too short for the clock are timed many at once.
//
// Where two calls take ten times as long as all may, as in a build for tests, they are all. One
// call would not do: libraries make code at the first one, and a virtual machine's pauses count as
// the time of the thread that they stop. `clock` returns seconds.
template <typename Function, typename Clock>
double FastestSeconds(const Function& function, double most_seconds, const Clock& clock) {
  constexpr double kAgreement = 1.1;
  constexpr double kClockSeconds = 1e-5;
  constexpr int kMostCalls = 1 << 14;
  const double first = SecondsOf(1, function, clock);
  int calls = 1;
  double seconds = SecondsOf(calls, function, clock);
  if (std::min(first, seconds) > 10 * most_seconds) return std::min(first, seconds);
  while (seconds < kClockSeconds && calls < kMostCalls) {
    calls *= seconds < kClockSeconds / 8 ? 8 : 2;
    seconds = SecondsOf(calls, function, clock);
  }
  double fastest = seconds;
  double second = std::numeric_limits<double>::infinity();
  for (double total = seconds; total < most_seconds && second > fastest * kAgreement;) {
    seconds = SecondsOf(calls, function, clock);
    total += seconds;
    second = std::min(second, std::max(seconds, fastest));
    fastest = std::min(fastest, seconds);
  }
  return std::max(fastest, 1e-9) / calls;
}

template <typename Function>
double FastestSeconds(const Function& function, double most_seconds) {
  return FastestSeconds(function, most_seconds, ThreadSeconds);
}

}  // namespace gemmd
