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

// `batch` random matrices of the layout, one after the other. Bytes between lines are all ones,
// which is NaN as a float.
std::vector<std::byte> RandomDense(const MatrixLayout& layout, uint64_t seed, int64_t matrices = 1);

// A random dense matrix with its smaller half set to zero, and its portable sparse form.
struct PrunedOperand {
  std::vector<std::byte> dense;  // Row major, no gaps.
  std::vector<std::byte> compressed;
};

// Errors: InvalidArgument if the type has no sparse form.
absl::StatusOr<PrunedOperand> RandomSparse(const MatrixLayout& layout, uint64_t seed);

// Checks that `sets` sets of A, B and D fit in memory, with one more A and B while drawing, and
// `other_bytes`. Errors: ResourceExhausted, with the needed and free bytes.
absl::Status CheckMemory(const Problem& problem, int64_t sets, int64_t other_bytes = 0);

// The operands of one problem in its layouts; a sparse A is compressed.
struct Operands {
  std::vector<std::byte> a;
  std::vector<std::byte> b;
  std::vector<std::byte> bias;       // Empty if there is none.
  std::vector<std::byte> a_factors;  // Of blocks; empty if there are none.
  std::vector<std::byte> b_factors;
  std::vector<std::byte> dense_a;  // The dense form of a compressed `a`; otherwise empty.
};

// Each `set` has different numbers. Errors: InvalidArgument if A is sparse and its type has no
// sparse form.
absl::StatusOr<Operands> DrawOperands(const Problem& problem, int set);

}  // namespace gemmd::bench
