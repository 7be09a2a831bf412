// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of every row: from accumulators to D, as kernel.h states it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/element.h"
#include "kernels/kernel.h"

namespace gemmd {

// The accumulators of one matrix of the batch, m x n, in D's order.
struct Accumulators {
  const std::byte* data =
      nullptr;  // Null: no product, all are 0. May be D's matrix, if of D's type.
  ElementType stored = ElementType::kF32;  // How they lie in memory: f32, f64 or s32.
  int64_t leading_dimension = 0;           // In elements.
  // What they are: as stored, or s32 stored in f64, exact and taken modulo 2^32 here.
  ElementType type = ElementType::kF32;
  // Sums s of k products of 1 and -1: they stand for the count of products that were -1, (k - s)
  // / 2.
  bool are_sums_of_signs = false;
};

// Writes matrix `index` of the batch of D.
//
// Errors:   none; the problem is valid and has an output.
// Threads:  parallel inside, on the calling thread's OpenMP threads, where it is large.
void ApplyEpilogue(const GemmArgs& args, int64_t index, const Accumulators& accumulators);

}  // namespace gemmd
