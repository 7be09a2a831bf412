// SPDX-License-Identifier: Apache-2.0
//
// Checks random elements of D. In each stripe of 128 rows some rows are drawn and in each stripe of
// 128 columns some columns; the elements where they cross are computed again. So each tile of 128 x
// 128 has its share, all elements of a tile are equally likely, and the recomputation is one small
// product.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/verify/recompute.h"

namespace gemmd::verify {

// One element of each whole tile.
inline constexpr double kDefaultRate = 1.0 / 16384;

// The cost of a check at a rate above 0 and at most 1.
struct SamplePlan {
  int64_t rows = 0;             // Drawn rows per matrix.
  int64_t columns = 0;          // Drawn columns per matrix.
  double miss_probability = 1;  // For a wrong element in the least likely place.
  double cost = 0;              // Operations relative to the product's.
  int64_t bytes = 0;            // Max additional memory.
};
SamplePlan PlanSample(const Problem& problem, double rate);

// The rows and columns to compute again, ascending. Precondition: the problem has a D.
struct SampledLines {
  std::vector<int64_t> rows;
  std::vector<int64_t> columns;
};
SampledLines DrawSample(const Problem& problem, double rate, Draw& draw);

// Draws other lines of each matrix of a batch or, if `drawn` has some, checks those of every
// matrix. Borrows the product and the source of random numbers.
std::unique_ptr<SlicedCheck> StartSample(const CheckedProduct& product, double rate, Draw& draw,
                                         const SampledLines& drawn = {});

// All slices. Errors: as Recompute.
absl::StatusOr<CheckResult> CheckSample(const CheckedProduct& product, double rate, Draw& draw);

}  // namespace gemmd::verify
