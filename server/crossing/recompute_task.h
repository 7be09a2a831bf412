// SPDX-License-Identifier: Apache-2.0
//
// A request to a GPU's worker, as plain data: to compute some elements of a D again, and to read
// them from the D that is there. Operands are gathered to a product of some rows and columns
// (kernels/verify/sub_product.h), so none is moved as a whole.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/per_operand.h"
#include "kernels/problem.h"
#include "server/crossing/job_layout.h"

namespace gemmd {

struct RecomputeTask {
  Problem problem;  // That of the whole D.
  int64_t rows = 0;
  int64_t columns = 0;  // How many rows and columns of each matrix of the batch.
  // Matrices of the whole in blocks. Operands elsewhere are staged, already gathered; a D elsewhere
  // is not read.
  JobPlaces places;
};

// Offsets in the staging area and in the job's range of GPU memory. Both begin with the numbers of
// the rows and the columns (int64_t).
struct RecomputeLayout {
  Problem sub;         // The problem of the rows and columns.
  JobLayout whole;     // Of the whole matrices, in their blocks.
  int64_t lists = 0;   // Bytes of the numbers, padded.
  JobLayout operands;  // In the range: all operands, then the computed D.
  JobLayout staged;    // In the staging area: the operands that are not in blocks.
  int64_t found = 0;   // In the range: the elements of the D that is there; 0: not read.
  int64_t end = 0;     // Of the range, without the kernel's workspace.
  JobMark mark;        // At the begin of the computed D.

  // Staged bytes that the worker reads: the numbers, the operands, and the mark.
  int64_t in_bytes() const { return lists + staged.input_bytes + kJobAlignment; }
  int64_t mark_offset() const { return lists + staged.input_bytes; }
  // The computed D in the range, and the staged bytes that the worker writes: the computed D, then
  // the one that was found.
  int64_t computed() const { return lists + operands.d.offset; }
  int64_t out_bytes() const { return end - computed(); }
};

// Errors: InvalidArgument for other numbers of rows and columns than D has, and for a problem
// without a D; ResourceExhausted beyond 2^63 bytes. The problem is valid.
absl::StatusOr<RecomputeLayout> LayOutRecompute(const RecomputeTask& task);

}  // namespace gemmd
