// SPDX-License-Identifier: Apache-2.0
//
// A whole product with vector code: packs operands in chunks of k and panels of columns, and
// distributes the tiles of the result to threads. The bits are those of the scalar path.
#pragma once

#include "kernels/sim/product.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {

// Whether there is vector code for the instruction.
bool HasVectorCode(const mma::Instruction& instruction, mma::Chip chip);

// The same as Multiply in product.h, with vector code.
void MultiplyVectors(const VectorCode& code, const Product2D& product,
                     const AccumulatorMatrix& accumulators);

}  // namespace gemmd::sim
