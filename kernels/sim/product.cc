// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/product.h"

#include "kernels/sim/scalar_product.h"

namespace gemmd::sim {

bool CanRun(Path path, const mma::Instruction&, mma::Chip) { return path == Path::kScalar; }

Path BestPath(const mma::Instruction& instruction, mma::Chip chip) {
  for (const Path path : {Path::kAvx512, Path::kAvx2}) {
    if (CanRun(path, instruction, chip)) return path;
  }
  return Path::kScalar;
}

void Multiply(Path path, const Product2D& product, const AccumulatorMatrix& accumulators) {
  switch (path) {
    case Path::kScalar: return MultiplyScalar(product, accumulators);
    case Path::kAvx2: return;
    case Path::kAvx512: return;
  }
}

}  // namespace gemmd::sim
