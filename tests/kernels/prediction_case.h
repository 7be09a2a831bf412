// SPDX-License-Identifier: Apache-2.0
//
// Products whose predicted time is compared with their measured time: one for each class of shapes
// and epilogues that has a cost of its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device_profile.h"
#include "kernels/kernel.h"

namespace gemmd {

struct PredictionCase {
  std::string_view name;  // "skinny m=1".
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t batch = 1;
  Order a = Order::kRowMajor;
  Order b = Order::kRowMajor;
  Order d = Order::kRowMajor;
  bool shares_b = false;          // All products of the batch have one B.
  bool has_sparse_a = false;      // If the type has such a form.
  bool is_finished = false;       // alpha, C, bias, scales and an activation.
  bool is_stored_narrow = false;  // D in f16.
};

// The products of a device of this kind; a simulator's are smaller.
std::vector<PredictionCase> PredictionCases(DeviceKind kind);

// The problem of a case in the kernel's own types.
Problem ProblemOf(const PredictionCase& c, const Kernel& kernel);

// The shortest time of several launches, in seconds. Launches until `max_seconds` have passed, or
// until one took at most `enough_seconds`. Errors: those of the kernel.
absl::StatusOr<double> FastestLaunch(const Kernel& kernel, const Problem& problem,
                                     const Target& target, double enough_seconds,
                                     double max_seconds);

}  // namespace gemmd
