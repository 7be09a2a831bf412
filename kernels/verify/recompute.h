// SPDX-License-Identifier: Apache-2.0
//
// Elements of D computed again: those where some rows and some columns cross. Kernels of matrix
// instructions are computed by the simulator of the device's chip and exact ones in integers, both
// to the bit; all others are held against their bound.
//
// An element of a row of any kernel is the same whatever product it is an element of, as long as
// its row of A, its column of B and what the epilogue adds are the same: so the rows and columns
// make a small product of their own.
#pragma once

#include "absl/status/status.h"
#include "kernels/verify/checked_product.h"
#include "kernels/verify/gather.h"

namespace gemmd::verify {

// OK where elements of the kernel's can be computed again; otherwise Unimplemented.
absl::Status CanRecompute(const Kernel& kernel);

// Bytes that Recompute takes beside what it is given, at most.
int64_t RecomputeBytes(const Problem& problem, int64_t rows, int64_t columns);

// Checks the elements of matrix `batch` where the rows and the columns cross and adds what it finds
// to `result`, the cost excepted. Blocks of them at a time, whatever their count is.
// Errors: Cancelled where it was aborted; ResourceExhausted where memory ran out.
absl::Status Recompute(const CheckedProduct& product, int64_t batch, Indices rows, Indices columns,
                       CheckResult& result);

}  // namespace gemmd::verify
