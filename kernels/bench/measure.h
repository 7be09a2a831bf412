// SPDX-License-Identifier: Apache-2.0
//
// One row of the catalogue timed beside its library, in turns, on the same kind of data.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/bench/direct.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

struct Settings {
  Order b_order = Order::kRowMajor;
  double seconds = 1;   // For each row and shape, warm-up not counted.
  int min_samples = 5;  // Of each contender, however long that takes.
};

// Times are medians over the samples of one call.
struct Measurement {
  std::string kernel;
  Shape shape;
  double kernel_seconds;
  std::string library_call;  // The fastest way of calling the library.
  double library_seconds;
  double ratio;  // Of the library's speed: median over turns, which noise hits alike. 2: twice as
                 // fast.
  int samples;
  std::string verdict;  // "ok", or the first element that is wrong.

  double operations() const { return shape.operations(); }
};

// Errors: as of Kernel::supports, workspace_bytes and launch.
absl::StatusOr<Measurement> Measure(const Kernel& kernel, const Shape& shape,
                                    const Settings& settings);

}  // namespace gemmd::bench
