// SPDX-License-Identifier: Apache-2.0
//
// Measures the speed of this host's kernels, on the calling thread only, on a machine that may do
// other work too.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device_profile.h"

namespace gemmd {

// The costs of launches on the target (HostCosts), and the rate of every engine that it has,
// measured with small products on the calling thread alone; rates are multiplied by the number of
// threads that SetThreads gave it. Takes some tens of milliseconds for each engine.
DeviceProfile MeasureRates(const Target& target);

// A profile from MeasureRates as plain numbers, for another process with the same catalogue.
std::vector<double> NumbersOf(const DeviceProfile& profile);
// The inverse of NumbersOf. Errors: InvalidArgument for malformed numbers.
absl::StatusOr<DeviceProfile> ProfileOf(const Target& target, absl::Span<const double> numbers);

// CPU time of the calling thread. Unlike wall time, it does not advance while other threads run.
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
// agree, or when `max_seconds` are over. Calls too short for the clock are timed many at once.
//
// If two calls take ten times the limit, as in a test build, there are no more. One call would not
// suffice: libraries generate code in the first one, and pauses of a virtual machine count as the
// time of the thread that they stop. `clock` returns seconds.
template <typename Function, typename Clock>
double FastestSeconds(const Function& function, double max_seconds, const Clock& clock) {
  constexpr double kAgreement = 1.1;
  constexpr double kClockSeconds = 1e-5;
  constexpr int kMaxCalls = 1 << 14;
  const double first = SecondsOf(1, function, clock);
  int calls = 1;
  double seconds = SecondsOf(calls, function, clock);
  if (std::min(first, seconds) > 10 * max_seconds) return std::min(first, seconds);
  while (seconds < kClockSeconds && calls < kMaxCalls) {
    calls *= seconds < kClockSeconds / 8 ? 8 : 2;
    seconds = SecondsOf(calls, function, clock);
  }
  double fastest = seconds;
  double second = std::numeric_limits<double>::infinity();
  for (double total = seconds; total < max_seconds && second > fastest * kAgreement;) {
    seconds = SecondsOf(calls, function, clock);
    total += seconds;
    second = std::min(second, std::max(seconds, fastest));
    fastest = std::min(fastest, seconds);
  }
  return std::max(fastest, 1e-9) / calls;
}

template <typename Function>
double FastestSeconds(const Function& function, double max_seconds) {
  return FastestSeconds(function, max_seconds, ThreadSeconds);
}

template <size_t kParts>
struct TimedWork {
  std::array<double, kParts> parts;  // Number of each part.
  double seconds;                    // More than 0.
};

// Fits nonnegative costs to the measured times: least squares of relative errors, by coordinate
// descent.
template <size_t kParts>
std::array<double, kParts> FitCosts(const std::vector<TimedWork<kParts>>& works) {
  constexpr int kSweeps = 20000;
  // Sums over all works of products of two shares, and of shares.
  std::array<std::array<double, kParts>, kParts> products = {};
  std::array<double, kParts> sums = {};
  for (const TimedWork<kParts>& work : works) {
    for (size_t i = 0; i < kParts; ++i) {
      const double share = work.parts[i] / work.seconds;
      sums[i] += share;
      for (size_t j = 0; j < kParts; ++j) products[i][j] += share * work.parts[j] / work.seconds;
    }
  }
  std::array<double, kParts> costs = {};
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (size_t i = 0; i < kParts; ++i) {
      double left = sums[i];
      for (size_t j = 0; j < kParts; ++j) {
        if (j != i) left -= products[i][j] * costs[j];
      }
      costs[i] = products[i][i] > 0 && left > 0 ? left / products[i][i] : 0;
    }
  }
  return costs;
}

}  // namespace gemmd
