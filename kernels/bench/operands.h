// SPDX-License-Identifier: Apache-2.0
//
// The random operands of every measurement, on the CPU, in the simulator and on a GPU: floats are
// normal variates, integers take all values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/problem.h"

namespace gemmd::bench {

// So many matrices as their layout says, one after the other. What lies between lines is all ones,
// which is NaN as a float.
std::vector<std::byte> RandomDense(const MatrixLayout& layout, uint64_t seed, int64_t matrices = 1);

// A random dense matrix whose smaller half was set to zero, and the same in the portable form.
struct PrunedOperand {
  std::vector<std::byte> dense;  // Row major, no gaps.
  std::vector<std::byte> compressed;
};

// Errors: InvalidArgument where the type has no sparse form.
absl::StatusOr<PrunedOperand> RandomSparse(const MatrixLayout& layout, uint64_t seed);

// Whether so many sets of A, B and D find memory, beside one more A and B while they are drawn and
// `other_bytes`. Errors: ResourceExhausted, with what they need and what is free.
absl::Status CheckMemory(const Problem& problem, int64_t sets, int64_t other_bytes = 0);

// The operands of one problem, as it has them: A compressed where it is sparse.
struct Operands {
  std::vector<std::byte> a;
  std::vector<std::byte> b;
  std::vector<std::byte> bias;     // Empty where it has none.
  std::vector<std::byte> dense_a;  // What `a` holds where that is compressed; otherwise empty.
};

// Every `set` has other numbers.
// Errors: InvalidArgument where A is sparse and its type has no sparse form.
absl::StatusOr<Operands> DrawOperands(const Problem& problem, int set);

}  // namespace gemmd::bench
