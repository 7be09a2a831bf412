// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/a_tiles.h"

#include <algorithm>

#include "kernels/element.h"
#include "kernels/sim/tiles.h"

namespace gemmd::sim {

ATiles::ATiles(const Product2D& product)
    : product_(product),
      rows_(product.instruction.m * product.instruction.products()),
      columns_(product.instruction.a_columns()) {
  if (product.instruction.is_sparse()) {
    // The problem was validated before.
    sparse_ = *SparseLayoutOf("a", product.problem.a.type, product.problem.m, product.problem.k);
  }
}

// Loads the kept elements of one group; for a group beyond the matrix, zeros at the places that
// come first.
template <typename Word>
void ATiles::LoadGroup(int64_t row, int64_t group, Word* values, int* places) const {
  const SparseForm& form = sparse_.form;
  const bool is_inside = row < sparse_.rows && group < sparse_.groups;
  for (int64_t unit = 0; unit < form.kept_units(); ++unit) {
    int64_t index = unit;
    if (is_inside) {
      const std::byte* line = product_.a + sparse_.indices_offset(row);
      const int64_t bit = (group * form.kept_units() + unit) * 2;
      index = std::to_integer<int64_t>(line[bit / 8]) >> (bit % 8) & 3;
    }
    for (int64_t i = 0; i < form.unit; ++i) {
      const int64_t kept = unit * form.unit + i;
      places[kept] = static_cast<int>(index * form.unit + i);
      values[kept] = 0;
      if (!is_inside) continue;
      values[kept] =
          static_cast<Word>(LoadBits(sparse_.type, product_.a + sparse_.values_offset(row),
                                     group * form.kept_units() * form.unit + kept));
    }
  }
}

template <typename Word>
void ATiles::Load(int64_t row, int64_t k, Word* values, int* a_k) const {
  if (!product_.instruction.is_sparse()) {
    LoadTile(product_.problem.a, product_.a, {row, k, rows_, columns_}, values);
    return;
  }
  const int64_t size = sparse_.form.group();
  const int64_t kept = size / 2;
  for (int64_t i = 0; i < rows_; ++i) {
    for (int64_t j = 0; j < columns_ / kept; ++j) {
      const int64_t at = i * columns_ + j * kept;
      LoadGroup(row + i, k / size + j, values + at, a_k + at);
      for (int64_t e = 0; e < kept; ++e) a_k[at + e] += static_cast<int>(j * size);
    }
  }
}

template void ATiles::Load(int64_t, int64_t, uint32_t*, int*) const;
template void ATiles::Load(int64_t, int64_t, uint64_t*, int*) const;

}  // namespace gemmd::sim
