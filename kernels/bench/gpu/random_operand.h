// SPDX-License-Identifier: Apache-2.0
//
// Random operands in memory of the host: floats are normal variates, integers take all values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/problem.h"

namespace gemmd::bench {

// One matrix as its layout says. What lies between lines is all ones, which is NaN as a float.
std::vector<std::byte> RandomDense(const MatrixLayout& layout, uint64_t seed);

// A random dense matrix whose smaller half was set to zero, and the same in the portable form.
struct PrunedOperand {
  std::vector<std::byte> dense;  // Row major, no gaps.
  std::vector<std::byte> compressed;
};

// Errors: InvalidArgument where the type has no sparse form.
absl::StatusOr<PrunedOperand> RandomSparse(const MatrixLayout& layout, uint64_t seed);

}  // namespace gemmd::bench
