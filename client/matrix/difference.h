// SPDX-License-Identifier: Apache-2.0
//
// Compares two matrices of the same type and shape bit by bit, and measures the distances.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/matrix/packed_matrix.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// The distance of two elements of the same type.
struct ElementDistance {
  // The number of steps between neighbouring values from a to b; 0 between +0 and -0. Infinity is
  // one step beyond the largest finite value. Absent if a or b is NaN.
  std::optional<uint64_t> ulps;
  double absolute = 0;  // |b - a|. NaN if a or b is.
  double relative = 0;  // |b - a| / |a|. NaN if a or b is NaN, or a is infinite.
};

// The distance of the elements with these bit patterns (as for ElementValue).
ElementDistance DistanceOf(v1::ElementType type, uint64_t a, uint64_t b);

// Counts of a block of elements.
struct DifferenceCell {
  int64_t differing = 0;
  int64_t nan = 0;        // Differing elements of which at least one is NaN.
  uint64_t max_ulps = 0;  // The largest distance of the others.

  void Add(const ElementDistance& distance);
  void Add(const DifferenceCell& other);
};

// A matrix divided into blocks of equal size, except the last ones.
class DifferenceMap {
 public:
  // Divides into at most `max_down` x `max_across` blocks. `batch`: the index of the matrix.
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

  // A map with fewer blocks: each merges `times` x 1 of these.
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
  uint64_t a = 0;  // The bit patterns.
  uint64_t b = 0;
  ElementDistance distance;
};

struct Difference {
  std::string a_name;  // What the caller calls the matrices; Compare leaves it empty.
  std::string b_name;
  v1::ElementType type = v1::ELEMENT_TYPE_UNSPECIFIED;
  int64_t batch = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t total = 0;      // Elements of all matrices.
  int64_t differing = 0;  // Elements whose bits differ: +0 and -0 do, identical NaNs do not.
  int64_t nan = 0;        // Differing elements of which at least one is NaN.
  int64_t matrices = 0;   // Matrices with differing elements.
  // The largest distances, without NaN.
  uint64_t max_ulps = 0;
  double max_absolute = 0;
  double max_relative = 0;
  // Counts of differing elements (without NaN) by distance: 0 ulps, 1, 2 to 3, 4 to 7, and so on.
  static constexpr int kUlpRanges = 65;
  std::array<int64_t, kUlpRanges> by_ulps = {};
  // Worst first: NaNs, then by ulps; equally bad elements in the order of `a`'s lines.
  std::vector<DifferingElement> worst;
  std::vector<DifferenceMap> maps;  // One map for each of the first matrices that differ.
};

struct CompareOptions {
  size_t max_worst = 10;  // Max elements in `worst`.
  size_t max_maps = 4;
  int64_t max_cells = 64;  // Max blocks of a map in each direction.
};

// Errors: InvalidArgument, naming "b", if the types or shapes differ, or naming either if its bytes
// do not fit its shape.
absl::StatusOr<Difference> Compare(const PackedMatrix& a, const PackedMatrix& b,
                                   const CompareOptions& options = {});

}  // namespace gemmd
