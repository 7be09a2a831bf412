// SPDX-License-Identifier: Apache-2.0
//
// Small matrices for tests of sparsity: each element given by its row and column.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/matrix/sparse24.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// Types that have a sparse form.
inline std::vector<ElementType> SparseTypes() {
  std::vector<ElementType> types;
  for (ElementType type : kAllElementTypes) {
    if (SparseFormOf(type)) types.push_back(type);
  }
  return types;
}

inline SparseLayout LayoutFor(ElementType type, int64_t rows, int64_t columns) {
  return SparseLayoutOf("a", type, rows, columns).value();
}

// Any bits except those of zero, NaN or infinity.
inline uint64_t RandomNonzero(ElementType type, RandomSource& random) {
  while (true) {
    const uint64_t bits = random.Bits() >> (64 - BitsOf(type));
    const double value = Decode(type, bits);
    if (value != 0 && std::isfinite(value)) return bits;
  }
}

// A dense matrix of bits, all zero at first.
class DenseBits {
 public:
  explicit DenseBits(const SparseLayout& layout)
      : layout_(layout), bytes_(static_cast<size_t>(layout.dense_bytes)) {}

  uint64_t Get(int64_t row, int64_t column) const {
    return LoadBits(layout_.type, bytes_.data() + row * layout_.dense_line_bytes, column);
  }
  double Value(int64_t row, int64_t column) const { return Decode(layout_.type, Get(row, column)); }
  void Set(int64_t row, int64_t column, uint64_t bits) {
    StoreBits(layout_.type, bytes_.data() + row * layout_.dense_line_bytes, column, bits);
  }
  std::byte* data() { return bytes_.data(); }
  const std::byte* data() const { return bytes_.data(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  SparseLayout layout_;
  std::vector<std::byte> bytes_;
};

}  // namespace gemmd
