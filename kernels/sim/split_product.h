// SPDX-License-Identifier: Apache-2.0
//
// A whole product of f32 matrices by way of f16 (split_float.h), out of two products of f16.
#pragma once

#include <cstddef>

#include "kernels/checked.h"
#include "kernels/problem.h"
#include "kernels/sim/product.h"

namespace gemmd::sim {

// Bytes of memory that MultiplySplit works in.
Checked SplitBytes(const Problem& problem);

// Computes the accumulators, f32, of a product whose A and B are f32, or some of them if it is
// aborted meanwhile. `memory` has SplitBytes(product.problem) bytes and is aligned to 4.
// Threads: as Multiply.
void MultiplySplit(Path path, const Product2D& product, const AccumulatorMatrix& accumulators,
                   std::byte* memory);

}  // namespace gemmd::sim
