// SPDX-License-Identifier: Apache-2.0
//
// A whole product by the vector code: operands are packed in chunks of k and panels of columns, and
// threads share the tiles of the result. The bits are those of the scalar path.
#pragma once

#include "kernels/sim/product.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {

// Whether there is vector code for the instruction.
bool HasVectorCode(const mma::Instruction& instruction, mma::Chip chip);

// Computes what Multiply of product.h does, by the vector code.
void MultiplyVectors(const VectorCode& code, const Product2D& product,
                     const AccumulatorMatrix& accumulators);

}  // namespace gemmd::sim
