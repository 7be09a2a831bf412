// SPDX-License-Identifier: Apache-2.0
//
// A check of elements of D that are drawn at random. In each stripe of 128 rows some rows are drawn
// and in each stripe of 128 columns some columns; the elements where they cross are computed again.
// So each tile of 128 x 128 has its share, each element is as likely to be drawn as any other of
// its tile, and what is to be computed is one small product.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/verify/recompute.h"

namespace gemmd::verify {

// One element of each whole tile.
inline constexpr double kDefaultRate = 1.0 / 16384;

// What a check at a rate takes. The rate is above 0 and at most 1.
struct SamplePlan {
  int64_t rows = 0;             // That are drawn, of one matrix;
  int64_t columns = 0;          // likewise.
  double miss_probability = 1;  // For one wrong element where it is least likely to be drawn.
  double cost = 0;              // Operations over those of the product.
  int64_t bytes = 0;            // Memory beside the product, at most.
};
SamplePlan PlanSample(const Problem& problem, double rate);

// Errors: as Recompute.
absl::StatusOr<CheckResult> CheckSample(const CheckedProduct& product, double rate, Draw& draw);

}  // namespace gemmd::verify
