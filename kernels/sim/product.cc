// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/product.h"

#include "kernels/sim/scalar_product.h"
#include "kernels/sim/vector_product.h"

namespace gemmd::sim {

bool CanRun(Path path, const mma::Instruction& instruction, mma::Chip chip) {
  switch (path) {
    case Path::kScalar: return true;
    case Path::kAvx2: return Avx2Code() != nullptr && HasVectorCode(instruction, chip);
    case Path::kAvx512: return Avx512Code() != nullptr && HasVectorCode(instruction, chip);
  }
  return false;
}

Path BestPath(const mma::Instruction& instruction, mma::Chip chip) {
  for (const Path path : {Path::kAvx512, Path::kAvx2}) {
    if (CanRun(path, instruction, chip)) return path;
  }
  return Path::kScalar;
}

void Multiply(Path path, const Product2D& product, const AccumulatorMatrix& accumulators) {
  switch (path) {
    case Path::kScalar: return MultiplyScalar(product, accumulators);
    case Path::kAvx2: return MultiplyVectors(*Avx2Code(), product, accumulators);
    case Path::kAvx512: return MultiplyVectors(*Avx512Code(), product, accumulators);
  }
}

}  // namespace gemmd::sim
