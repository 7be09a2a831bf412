// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/difference_map.h"

#include <algorithm>

namespace gemmd {
namespace {

// Both are positive, or x is 0. The sum that rounds up the usual way could leave 63 bits.
int64_t CeilDivide(int64_t x, int64_t y) { return x / y + (x % y != 0 ? 1 : 0); }

}  // namespace

void DifferenceCell::Add(const ElementDistance& distance) {
  ++differing;
  if (!distance.ulps.has_value()) ++nan;
  most_ulps = std::max(most_ulps, distance.ulps.value_or(0));
}

void DifferenceCell::Add(const DifferenceCell& other) {
  differing += other.differing;
  nan += other.nan;
  most_ulps = std::max(most_ulps, other.most_ulps);
}

DifferenceMap::DifferenceMap(int64_t batch, int64_t rows, int64_t columns, int64_t most_down,
                             int64_t most_across)
    : batch_(batch),
      rows_(rows),
      columns_(columns),
      block_rows_(std::max<int64_t>(1, CeilDivide(rows, most_down))),
      block_columns_(std::max<int64_t>(1, CeilDivide(columns, most_across))),
      down_(CeilDivide(rows, block_rows_)),
      across_(CeilDivide(columns, block_columns_)),
      cells_(static_cast<size_t>(down_ * across_)) {}

void DifferenceMap::Add(int64_t row, int64_t column, const ElementDistance& distance) {
  const int64_t cell = row / block_rows_ * across_ + column / block_columns_;
  cells_[static_cast<size_t>(cell)].Add(distance);
}

const DifferenceCell& DifferenceMap::At(int64_t down, int64_t across) const {
  return cells_[static_cast<size_t>(down * across_ + across)];
}

DifferenceMap DifferenceMap::Flattened(int64_t times) const {
  DifferenceMap flat = *this;
  flat.block_rows_ *= times;
  flat.down_ = CeilDivide(down_, times);
  flat.cells_.assign(static_cast<size_t>(flat.down_ * across_), {});
  for (int64_t i = 0; i < down_; ++i) {
    for (int64_t j = 0; j < across_; ++j) {
      flat.cells_[static_cast<size_t>(i / times * across_ + j)].Add(At(i, j));
    }
  }
  return flat;
}

}  // namespace gemmd
