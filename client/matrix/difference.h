// SPDX-License-Identifier: Apache-2.0
//
// Where two matrices of one type and shape differ, bit by bit, and how far.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/matrix/difference_map.h"
#include "client/matrix/element_distance.h"
#include "client/matrix/packed_matrix.h"
#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

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
  uint64_t most_ulps = 0;
  double most_absolute = 0;
  double most_relative = 0;
  // Those that are not NaN: 0 ulps apart, 1, 2 to 3, 4 to 7, and so on by powers of two.
  static constexpr int kUlpRanges = 65;
  std::array<int64_t, kUlpRanges> by_ulps = {};
  // The worst first: NaNs, then by ulps; of equally bad ones those that come first, row by row in
  // the order of `a`'s lines.
  std::vector<DifferingElement> worst;
  std::vector<DifferenceMap> maps;  // One for each of the first matrices that differ.
};

struct CompareOptions {
  size_t most_worst = 10;  // Elements to be kept.
  size_t most_maps = 4;
  int64_t most_cells = 64;  // A map has no more, down and across.
};

// Errors: InvalidArgument, naming "b", where the types or shapes differ, or, naming either, where
// the bytes do not fit the shape.
absl::StatusOr<Difference> Compare(const PackedMatrix& a, const PackedMatrix& b,
                                   const CompareOptions& options = {});

}  // namespace gemmd
