// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of every row: from accumulators to D, as kernel.h states it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/matrix/element.h"

namespace gemmd {

// The accumulators of one matrix of the batch, m x n, in D's order.
struct Accumulators {
  // Null if there is no product: all accumulators are 0. May be D's matrix, if D has their type.
  const std::byte* data = nullptr;
  ElementType stored = ElementType::kF32;  // Their type in memory: f32, f64 or s32.
  int64_t leading_dimension = 0;           // In elements.
  // The type that they represent: `stored`, or s32 held exactly in f64 and taken modulo 2^32 here.
  ElementType type = ElementType::kF32;
  // Whether each accumulator is a sum s of k products of 1 and -1 that represents (k - s) / 2, the
  // number of products that were -1.
  bool are_sums_of_signs = false;
};

// Writes matrix `index` of the batch of D, or a part of it if the launch is aborted meanwhile.
//
// Errors:   none; the problem is valid and has an output.
// Threads:  parallel inside, on the calling thread's OpenMP threads, if the matrix is large.
void ApplyEpilogue(const GemmArgs& args, int64_t index, const Accumulators& accumulators);

}  // namespace gemmd
