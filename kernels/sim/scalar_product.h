// SPDX-License-Identifier: Apache-2.0
//
// A whole product by the plain unit, tile by tile through registers.
#pragma once

#include <cstdint>

#include "kernels/sim/product.h"

namespace gemmd::sim {

// Computes what Multiply of product.h does, by the plain unit.
void MultiplyScalar(const Product2D& product, const AccumulatorMatrix& accumulators);

// The bits of a sum of one type as another: f16 and f32 are converted into each other, others stay
// unchanged.
uint64_t ConvertSum(ElementType from, ElementType to, uint64_t bits);

void StoreAccumulator(const AccumulatorMatrix& accumulators, int64_t row, int64_t column,
                      uint64_t bits);

}  // namespace gemmd::sim
