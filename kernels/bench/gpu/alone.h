// SPDX-License-Identifier: Apache-2.0
//
// A loop that has the device for itself: in turns, the clock is that of all who take turns, and
// nobody sees who spends the power.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/device.h"

namespace gemmd::bench {

struct AloneTime {
  double seconds = 0;            // Mean of one call.
  std::optional<double> joules;  // What one call takes; absent where the device does not tell.
  int sm_clock_mhz = 0;          // Median.

  friend bool operator==(const AloneTime&, const AloneTime&) = default;
};

// Runs the loop for half of `seconds` to warm up, and then for `seconds`. A GPU counts its energy
// some ten times a second, so joules are right to a few per cent from two seconds on.
// Errors: as of Loop::Run.
absl::StatusOr<AloneTime> TimeAlone(Device& device, Loop& loop, double seconds);

}  // namespace gemmd::bench
