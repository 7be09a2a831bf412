// SPDX-License-Identifier: Apache-2.0
//
// Where two matrices of one type and shape differ, bit by bit, and how far.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/matrix/packed_matrix.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// How far two elements of one type lie apart.
struct ElementDistance {
  // Steps from one value of the type to the next that lead from a to b; 0 between the zeros of a
  // float type. Infinity is one step beyond the largest finite value. Absent where a or b is NaN.
  std::optional<uint64_t> ulps;
  double absolute = 0;  // |b - a|. NaN where a or b is.
  double relative = 0;  // |b - a| / |a|. NaN where a or b is, and for a of infinity.
};

// How far the elements with these patterns of bits are apart; patterns as ElementValue takes them.
ElementDistance DistanceOf(v1::ElementType type, uint64_t a, uint64_t b);

// What a block of elements has.
struct DifferenceCell {
  int64_t differing = 0;
  int64_t nan = 0;        // So many of them are NaN on a side.
  uint64_t max_ulps = 0;  // The largest distance of those that are not.

  void Add(const ElementDistance& distance);
  void Add(const DifferenceCell& other);
};

// A matrix cut into blocks of equal extents, but for the last ones.
class DifferenceMap {
 public:
  // As many blocks as fit into `max_down` x `max_across`. `batch` is the number of the matrix.
  DifferenceMap(int64_t batch, int64_t rows, int64_t columns, int64_t max_down, int64_t max_across);

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

// An element whose bits differ.
struct DifferingElement {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t column = 0;
  uint64_t a = 0;  // The patterns of bits.
  uint64_t b = 0;
  ElementDistance distance;
};

struct Difference {
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  int64_t batch = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t total = 0;      // Elements of a matrix, or of all of a batch.
  int64_t differing = 0;  // Elements whose bits differ. Equal NaNs do not, +0 and -0 do.
  int64_t nan = 0;        // Those of them that are NaN on a side.
  int64_t matrices = 0;   // Matrices with such elements.
  // The largest distances; of those that are not NaN.
  uint64_t max_ulps = 0;
  double max_absolute = 0;
  double max_relative = 0;
  // Those that are not NaN: 0 ulps apart, 1, 2 to 3, 4 to 7, and so on by powers of two.
  static constexpr int kUlpRanges = 65;
  std::array<int64_t, kUlpRanges> by_ulps = {};
  // The worst first: NaNs, then by ulps; of equally bad ones those that come first, row by row in
  // the order of `a`'s lines.
  std::vector<DifferingElement> worst;
  std::vector<DifferenceMap> maps;  // One for each of the first matrices that differ.
};

struct CompareOptions {
  size_t max_worst = 10;  // Elements to be kept.
  size_t max_maps = 4;
  int64_t max_cells = 64;  // A map has no more, down and across.
};

// Errors: InvalidArgument, naming "b", where the types or shapes differ, or, naming either, where
// the bytes do not fit the shape.
absl::StatusOr<Difference> Compare(const PackedMatrix& a, const PackedMatrix& b,
                                   const CompareOptions& options = {});

}  // namespace gemmd
