// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/factor_tiles.h"

#include <cstddef>

namespace gemmd::sim {

FactorTiles::FactorTiles(const Product2D& product) : product_(product) {
  if (!product.problem.has_block_scales()) return;
  const mma::Instruction& instruction = product.instruction;
  a_.resize(static_cast<size_t>(instruction.m * instruction.scales));
  b_.resize(static_cast<size_t>(instruction.n * instruction.scales));
}

uint8_t FactorTiles::FactorOf(const BlockScale* blocks, const std::byte* factors, int64_t extent,
                              int64_t line, int64_t k) const {
  const bool is_inside = line < extent && k < product_.problem.k;
  if (blocks == nullptr || !is_inside) return mma::OneOf(product_.instruction.scale);
  return std::to_integer<uint8_t>(factors[blocks->offset(line, k, product_.problem.k)]);
}

void FactorTiles::Load(int64_t row, int64_t column, int64_t k) {
  if (a_.empty()) return;
  const Problem& problem = product_.problem;
  const mma::Instruction& instruction = product_.instruction;
  for (int block = 0; block < instruction.scales; ++block) {
    const int64_t depth = k + int64_t{block} * instruction.scale_block();
    for (int i = 0; i < instruction.m; ++i) {
      a_[static_cast<size_t>(i * instruction.scales + block)] =
          FactorOf(problem.blocks_of_a(), product_.a_factors, problem.m, row + i, depth);
    }
    for (int j = 0; j < instruction.n; ++j) {
      b_[static_cast<size_t>(block * instruction.n + j)] =
          FactorOf(problem.blocks_of_b(), product_.b_factors, problem.n, column + j, depth);
    }
  }
}

}  // namespace gemmd::sim
