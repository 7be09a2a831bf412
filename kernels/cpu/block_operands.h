// SPDX-License-Identifier: Apache-2.0
//
// Operands of the block rows in the workspace: widened to f32 and laid out as strips (block_sums.h)
// take them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/abort.h"
#include "kernels/problem.h"

namespace gemmd {

// Where things lie in the workspace, in bytes; all of it is for one matrix of the batch.
struct BlockPlan {
  int64_t dense_a = 0;    // A expanded, where it is sparse.
  int64_t a = 0;          // m lines of k floats.
  int64_t b = 0;          // For each panel of columns, k lines of a panel's floats.
  int64_t a_factors = 0;  // For each block of rows, a float for each block of k.
  int64_t b_factors = 0;  // For each panel of columns, a line of floats for each block of k.
  int64_t totals = 0;     // D in f32, in its own order, where it is of another type.
  int64_t bytes = 0;
};

int64_t PanelsOf(const Problem& problem);

// Errors: ResourceExhausted where the workspace would take 2^63 bytes or more.
absl::StatusOr<BlockPlan> PlanBlocks(const Problem& problem);

// The dense layout of A, expanded or as it is.
MatrixLayout DenseLayoutOf(const MatrixLayout& layout);

// Each writes its part of the workspace, for one matrix, or some of it if it is aborted meanwhile.
// Threads: parallel inside, on the calling thread's OpenMP threads, if `is_shared`.
void WidenA(const MatrixLayout& layout, const std::byte* matrix, float* lines, bool is_shared,
            AbortFlag abort);
void WidenB(const MatrixLayout& layout, const std::byte* matrix, float* panels, bool is_shared,
            AbortFlag abort);
void DecodeFactorsOfA(const Problem& problem, const std::byte* factors, float* decoded,
                      AbortFlag abort);
void DecodeFactorsOfB(const Problem& problem, const std::byte* factors, float* decoded,
                      AbortFlag abort);

}  // namespace gemmd
