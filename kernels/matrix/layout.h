// SPDX-License-Identifier: Apache-2.0
//
// Sizes of matrices in checked 64-bit arithmetic, and their layout in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/product_options.h"

namespace gemmd {

// A product or sum of non-negative numbers; it is absent once it exceeds 63 bits.
class Checked {
 public:
  Checked(int64_t value)
      : value_(value) {}  // NOLINT(google-explicit-constructor): mixes with plain numbers.

  friend Checked operator*(Checked a, Checked b) {
    Checked result(0);
    const bool overflows =
        !a.value_ || !b.value_ || __builtin_mul_overflow(*a.value_, *b.value_, &*result.value_);
    if (overflows) result.value_.reset();
    return result;
  }
  friend Checked operator+(Checked a, Checked b) {
    Checked result(0);
    const bool overflows =
        !a.value_ || !b.value_ || __builtin_add_overflow(*a.value_, *b.value_, &*result.value_);
    if (overflows) result.value_.reset();
    return result;
  }
  std::optional<int64_t> value() const { return value_; }

 private:
  std::optional<int64_t> value_;
};

// Bytes of `count` elements packed in one line.
inline Checked PackedBytes(ElementType type, int64_t count) {
  const int64_t bits = BitsOf(type);
  if (bits % 8 == 0) return Checked(count) * Checked(bits / 8);
  // Eight elements fill `bits` bytes, so nothing here exceeds the result by more than 8 bits.
  return Checked(count / 8) * Checked(bits) + Checked((count % 8 * bits + 7) / 8);
}

// The memory layout of a batch of matrices of one shape. A line is a row (row major) or a column. A
// sparse matrix is row major, and its rows, columns and leading dimension (= columns) are those of
// the dense matrix. SparseLayoutOf(type, rows, columns) describes its bytes; the functions about
// lines do not apply to it.
struct MatrixLayout {
  ElementType type = ElementType::kF32;
  Order order = Order::kRowMajor;
  Sparsity sparsity = Sparsity::kNone;  // Only A may be sparse.
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t leading_dimension = 0;   // Elements between starts of lines; >= line length.
  int64_t batch_stride_bytes = 0;  // Between matrices; 0 broadcasts one matrix (inputs only).

  int64_t lines() const { return order == Order::kRowMajor ? rows : columns; }
  int64_t line_length() const { return order == Order::kRowMajor ? columns : rows; }
  // From the start of one line to the next. The product cannot overflow in a validated layout.
  int64_t line_stride_bytes() const { return (leading_dimension * BitsOf(type) + 7) / 8; }
  bool empty() const { return rows == 0 || columns == 0; }
  bool is_sparse() const { return sparsity != Sparsity::kNone; }

  friend bool operator==(const MatrixLayout&, const MatrixLayout&) = default;
};

// A layout without gaps: leading dimension = line length, batch stride = one matrix.
// Errors: InvalidArgument if a size in bytes exceeds 63 bits; `field` names the matrix ("a").
absl::StatusOr<MatrixLayout> TightLayout(std::string_view field, ElementType type, Order order,
                                         int64_t rows, int64_t columns);

// A layout without gaps of a sparse matrix, row major.
// Errors: those of SparseLayoutOf.
absl::StatusOr<MatrixLayout> TightSparseLayout(std::string_view field, ElementType type,
                                               int64_t rows, int64_t columns);

// Bytes of a batch of matrices: `least` ends after the last element, `full` pads the last line. A
// sparse matrix has no padding.
struct ByteCount {
  int64_t least = 0;
  int64_t full = 0;
};

// Errors: InvalidArgument if the count exceeds 63 bits, or if the type has no sparse form.
absl::StatusOr<ByteCount> BytesOf(std::string_view field, const MatrixLayout& layout,
                                  int64_t batch);

// Elements of a batch of matrices; a shared matrix counts once.
double ElementsOf(const MatrixLayout& layout, int64_t batch);

// One of many ranges of bytes that are copied together.
struct CopiedPart {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;  // 0: nothing is copied.
};

}  // namespace gemmd
