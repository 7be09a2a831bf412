// SPDX-License-Identifier: Apache-2.0
//
// A whole product by the vector code: operands packed in chunks of k, panels of columns, threads
// over tiles of the result. The bits are those of the scalar path.
#pragma once

#include "kernels/sim/product.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {

// Whether there is vector code for the instruction.
bool HasVectorCode(const mma::Instruction& instruction, mma::Chip chip);

// As Multiply of product.h.
void MultiplyVectors(const VectorCode& code, const Product2D& product,
                     const AccumulatorMatrix& accumulators);

}  // namespace gemmd::sim
