// SPDX-License-Identifier: Apache-2.0
//
// Where the elements of a matrix differ, in as many cells as a reader can take in.
#pragma once

#include <cstdint>
#include <vector>

#include "client/matrix/element_distance.h"

namespace gemmd {

// What a block of elements has.
struct DifferenceCell {
  int64_t differing = 0;
  int64_t nan = 0;         // So many of them are NaN on a side.
  uint64_t most_ulps = 0;  // The largest distance of those that are not.

  void Add(const ElementDistance& distance);
  void Add(const DifferenceCell& other);
};

// A matrix cut into blocks of equal extents, but for the last ones.
class DifferenceMap {
 public:
  // As many blocks as fit into `most_down` x `most_across`. `batch` is the number of the matrix.
  DifferenceMap(int64_t batch, int64_t rows, int64_t columns, int64_t most_down,
                int64_t most_across);

  void Add(int64_t row, int64_t column, const ElementDistance& distance);

  int64_t batch() const { return batch_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t down() const { return down_; }  // Blocks.
  int64_t across() const { return across_; }
  int64_t block_rows() const { return block_rows_; }
  int64_t block_columns() const { return block_columns_; }
  const DifferenceCell& At(int64_t down, int64_t across) const;

  // The same with fewer blocks: each is `times` x 1 of these.
  DifferenceMap Flattened(int64_t times) const;

 private:
  int64_t batch_;
  int64_t rows_;
  int64_t columns_;
  int64_t block_rows_;
  int64_t block_columns_;
  int64_t down_;
  int64_t across_;
  std::vector<DifferenceCell> cells_;
};

}  // namespace gemmd
