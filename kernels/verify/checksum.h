// SPDX-License-Identifier: Apache-2.0
//
// A check of the whole of D: each row of D times a random vector r against A (B r), as Freivalds,
// Huang and Abraham compare, and for floating point each column likewise, since errors of one row
// may cancel. Needs no matrix-matrix product.
//
// Integers: modulo 2^32 with odd numbers r, which finds any single wrong element of a row, and
// modulo 2^61 - 1, which misses any other pattern with a probability of 2^-61. If sums can exceed
// 32 bits, 28 vectors of any numbers modulo 2^32 take the place of the second check, and the
// probability is at most 2^-28.
//
// Floating point: the rounding errors of a row's elements do not depend on r, which has random
// signs; so their sum has about the variance of independent errors, whatever the data is. A row
// whose sum is off by more than kDeviations of the standard deviation that its elements' magnitudes
// explain is computed again (recompute.h), which decides: a correct result is never reported as
// wrong.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/verify/recompute.h"

namespace gemmd::verify {

inline constexpr double kDeviations = 6;
// Max rows and columns of D to compute again; if more are suspicious, the result is "undecided".
inline constexpr int64_t kMaxSuspicions = 8;

// OK if the sums of the problem can be checked; otherwise Unimplemented: field, got, want.
absl::Status CanCheckSums(const Kernel& kernel, const Problem& problem);

// How often CheckSums reads each matrix: those of floats for their rows and their columns, those of
// integers whose sums can exceed 32 bits once for every few vectors.
int SumPasses(const Kernel& kernel, const Problem& problem);

// Memory of CheckSums in addition to the product, and its operations relative to the product's if
// nothing is suspicious.
int64_t SumBytes(const Problem& problem);
double SumCost(const Kernel& kernel, const Problem& problem);

// Precondition: CanCheckSums. Borrows all arguments.
std::unique_ptr<SlicedCheck> StartSums(const CheckedProduct& product, Draw& draw);

// All slices. Errors: as Recompute.
absl::StatusOr<CheckResult> CheckSums(const CheckedProduct& product, Draw& draw);

// Compares two results of one product, bit by bit.
CheckResult CompareResults(const Problem& problem, absl::Span<const std::byte> d,
                           absl::Span<const std::byte> again);

}  // namespace gemmd::verify
