// SPDX-License-Identifier: Apache-2.0
//
// A whole product by the plain unit, tile by tile through registers.
#pragma once

#include <cstdint>

#include "kernels/sim/product.h"

namespace gemmd::sim {

// As Multiply of product.h.
void MultiplyScalar(const Product2D& product, const AccumulatorMatrix& accumulators);

// The bits of a sum of one type as another: f16 and f32 into each other, others unchanged.
uint64_t ConvertSum(ElementType from, ElementType to, uint64_t bits);

void StoreAccumulator(const AccumulatorMatrix& accumulators, int64_t row, int64_t column,
                      uint64_t bits);

}  // namespace gemmd::sim
