// SPDX-License-Identifier: Apache-2.0
//
// Measures a loop alone on the device: if loops take turns, they share one clock, and power cannot
// be attributed.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/gpu/device.h"

namespace gemmd::bench {

struct AloneTime {
  double seconds = 0;            // Mean of one call.
  std::optional<double> joules;  // Energy of one call; absent if the device does not report it.
  int sm_clock_mhz = 0;          // Median.

  friend bool operator==(const AloneTime&, const AloneTime&) = default;
};

// Runs the loop for half of `seconds` to warm up, and then for `seconds`. A GPU updates its energy
// counter about ten times a second, so from two seconds on, joules are accurate to a few per cent.
// Errors: those of Loop::Run.
absl::StatusOr<AloneTime> TimeAlone(Device& device, Loop& loop, double seconds);

}  // namespace gemmd::bench
