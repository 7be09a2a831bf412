// SPDX-License-Identifier: Apache-2.0
//
// Checks of other implementations of the sparse format, on the host and on a GPU, and of pruning on
// a GPU: bytes, counts and messages must be those of kernels/matrix/sparse24.h.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/sparse_groups.h"
#include "tests/testing/random_source.h"

namespace gemmd {

using SparseBytes = std::vector<std::byte>;

// Like the functions with these names; the field is "a.data".
struct PruneFunctions {
  std::function<int64_t(const SparseLayout&, SparseBytes& dense)> prune;
  std::function<int64_t(const SparseLayout&, SparseBytes& dense)> prune_both_ways;
};
struct SparseFunctions {
  std::function<absl::Status(const SparseLayout&, const SparseBytes& dense)> check_pruned;
  std::function<absl::Status(const SparseLayout&, const SparseBytes& compressed)> check_compressed;
  std::function<absl::Status(const SparseLayout&, const SparseBytes& dense, SparseBytes&)> compress;
  std::function<void(const SparseLayout&, const SparseBytes& compressed, SparseBytes&)> expand;
};

// Sets the view's pointers to these bytes and calls CompressLines; an empty mask means none.
using CompressViewFunction = std::function<BadGroup(
    CompressView view, const SparseBytes& dense, const SparseBytes& mask, SparseBytes& compressed)>;

// Each fails a GoogleTest test at the first difference.
void CheckPruning(const PruneFunctions& functions, RandomSource& random);
void CheckCompressing(const SparseFunctions& functions, RandomSource& random);
void CheckCompressingViews(const CompressViewFunction& compress, RandomSource& random);
void CheckFaults(const SparseFunctions& functions, RandomSource& random);

}  // namespace gemmd
