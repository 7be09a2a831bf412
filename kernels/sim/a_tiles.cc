// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/a_tiles.h"

namespace gemmd::sim {

ATiles::ATiles(const Product2D& product)
    : product_(product), rows_(product.instruction.m * product.instruction.products()) {}

template <typename Word>
void ATiles::Load(int64_t row, int64_t k, Word* values, int* /*a_k*/) const {
  LoadTile(product_.problem.a, product_.a, {row, k, rows_, product_.instruction.k}, values);
}

template void ATiles::Load(int64_t, int64_t, uint32_t*, int*) const;
template void ATiles::Load(int64_t, int64_t, uint64_t*, int*) const;

}  // namespace gemmd::sim
