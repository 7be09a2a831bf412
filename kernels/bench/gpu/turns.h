// SPDX-License-Identifier: Apache-2.0
//
// Times loops in turns, so that clock changes affect all of them alike.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/bench/gpu/device.h"

namespace gemmd::bench {

struct TurnSettings {
  double seconds = 1;          // Device time for all samples together, the warm-up not counted.
  int min_samples = 5;         // For each loop, regardless of the time.
  double sample = 5e-3;        // Min seconds of a sample.
  double warm_up = 0.25;       // Seconds at least; ...
  double settled = 0.01;       // ... then until three samples differ by no more than this, ...
  double longest_warm_up = 2;  // ... or for at most this many seconds.
};

// A loop that takes turns with others.
struct Contender {
  Loop* loop;
  int times = 1;                     // How often a sample runs the loop.
  std::vector<double> seconds = {};  // Seconds per call, by sample.
  std::vector<double> clocks = {};   // MHz, by sample.
};

// Fills in the contenders' samples. The first contender warms up the device. Errors: those of
// Loop::Run.
absl::Status TakeTurns(absl::Span<Contender> contenders, const TurnSettings& settings);

}  // namespace gemmd::bench
