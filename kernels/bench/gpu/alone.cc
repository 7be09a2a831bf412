// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/gpu/alone.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/bench/statistics.h"
#include "kernels/matrix/status.h"

namespace gemmd::bench {
namespace {

constexpr double kPartSeconds = 0.05;  // Between two checks of the time.
constexpr double kShortest = 1e-7;     // The assumed min time of a loop.
constexpr double kMaxTimes = 1e6;

struct Ran {
  double seconds = 0;
  double calls = 0;
  std::vector<double> clocks;
};

absl::StatusOr<Ran> RunFor(Loop& loop, int times, double seconds) {
  Ran ran;
  while (ran.clocks.empty() || ran.seconds < seconds) {
    ASSIGN_OR_RETURN(const double part, loop.Run(times));
    ran.seconds += std::max(part, kShortest);
    ran.calls += static_cast<double>(times) * loop.calls();
    ran.clocks.push_back(loop.sm_clock_mhz());
  }
  return ran;
}

}  // namespace

absl::StatusOr<AloneTime> TimeAlone(Device& device, Loop& loop, double seconds) {
  RETURN_IF_ERROR(loop.Run(1).status());  // Triggers lazy loading.
  ASSIGN_OR_RETURN(const double once, loop.Run(1));
  const int times = static_cast<int>(
      std::clamp(std::ceil(kPartSeconds / std::max(once, kShortest)), 1.0, kMaxTimes));
  RETURN_IF_ERROR(RunFor(loop, times, seconds / 2).status());
  const std::optional<double> before = device.energy_joules();
  ASSIGN_OR_RETURN(const Ran ran, RunFor(loop, times, seconds));
  const std::optional<double> after = device.energy_joules();
  AloneTime time;
  time.seconds = ran.seconds / ran.calls;
  time.sm_clock_mhz = static_cast<int>(Median(ran.clocks));
  if (before && after) time.joules = (*after - *before) / ran.calls;
  return time;
}

}  // namespace gemmd::bench
