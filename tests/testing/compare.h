// SPDX-License-Identifier: Apache-2.0
//
// The two ways in which tests compare matrices: bit for bit, and within a bound derived for each
// element. There is no third: a norm or a share of mismatches hides wrong elements.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <ios>
#include <string>

#include "absl/types/span.h"
#include "kernels/matrix/element.h"
#include "kernels/problem.h"

namespace gemmd {

// A batch of matrices in memory.
struct MatrixView {
  const MatrixLayout& layout;
  int64_t batch;
  const std::byte* data;

  uint64_t bits(int64_t matrix, int64_t row, int64_t column) const {
    const bool is_row_major = layout.order == Order::kRowMajor;
    const int64_t line_bytes = (layout.leading_dimension * BitsOf(layout.type) + 7) / 8;
    const std::byte* line =
        data + matrix * layout.batch_stride_bytes + (is_row_major ? row : column) * line_bytes;
    return LoadBits(layout.type, line, is_row_major ? column : row);
  }
  double value(int64_t matrix, int64_t row, int64_t column) const {
    return Decode(layout.type, bits(matrix, row, column));
  }
};

// Counts the differences between two batches of one shape and reports their number and the first
// one.
class Differences {
 public:
  explicit Differences(const MatrixView& view) : view_(view) {}

  template <typename Describe>
  void Add(int64_t matrix, int64_t row, int64_t column, const Describe& describe) {
    if (count_++ > 0) return;
    message_ << "first at matrix " << matrix << ", row " << row << ", column " << column << ": ";
    describe(message_);
  }

  ::testing::AssertionResult Result() const {
    if (count_ == 0) return ::testing::AssertionSuccess();
    const int64_t total = view_.batch * view_.layout.rows * view_.layout.columns;
    return ::testing::AssertionFailure()
           << count_ << " of " << total << " elements of type "
           << std::string(NameOf(view_.layout.type)) << " differ, " << message_;
  }

 private:
  const MatrixView& view_;
  int64_t count_ = 0;
  ::testing::Message message_;
};

// Calls visit(matrix, row, column) for every element.
template <typename Visit>
void ForEachElement(const MatrixView& view, const Visit& visit) {
  for (int64_t matrix = 0; matrix < view.batch; ++matrix) {
    for (int64_t row = 0; row < view.layout.rows; ++row) {
      for (int64_t column = 0; column < view.layout.columns; ++column) visit(matrix, row, column);
    }
  }
}

// Whether two batches of one shape and type hold the same bits; their layouts may differ.
inline ::testing::AssertionResult BitEqual(const MatrixView& got, const MatrixView& want) {
  if (got.layout.type != want.layout.type || got.layout.rows != want.layout.rows ||
      got.layout.columns != want.layout.columns || got.batch != want.batch) {
    return ::testing::AssertionFailure() << "the types or shapes differ";
  }
  Differences differences(got);
  ForEachElement(got, [&](int64_t matrix, int64_t row, int64_t column) {
    const uint64_t got_bits = got.bits(matrix, row, column);
    const uint64_t want_bits = want.bits(matrix, row, column);
    if (got_bits == want_bits) return;
    differences.Add(matrix, row, column, [&](::testing::Message& message) {
      message << std::hex << "got 0x" << got_bits << ", want 0x" << want_bits << std::dec << " ("
              << std::setprecision(17) << got.value(matrix, row, column) << ", "
              << want.value(matrix, row, column) << ")";
    });
  });
  return differences.Result();
}

// Whether `got` matches `want` in kind (NaN, infinity of the same sign) and, if finite, is within
// the bound. NaN as a bound or as an error fails.
inline bool IsWithin(double got, double want, double bound) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  return std::fabs(got - want) <= bound;
}

// Whether every element is within its own bound. `want` and `bound` hold one value per element,
// matrix by matrix, row by row.
inline ::testing::AssertionResult WithinBound(const MatrixView& got, absl::Span<const double> want,
                                              absl::Span<const double> bound) {
  const auto count = static_cast<size_t>(got.batch * got.layout.rows * got.layout.columns);
  if (count != want.size() || count != bound.size()) {
    return ::testing::AssertionFailure() << "got " << count << " elements, want values for "
                                         << want.size() << " and bounds for " << bound.size();
  }
  Differences differences(got);
  size_t index = 0;
  ForEachElement(got, [&](int64_t matrix, int64_t row, int64_t column) {
    const double value = got.value(matrix, row, column);
    const size_t i = index++;
    if (IsWithin(value, want[i], bound[i])) return;
    differences.Add(matrix, row, column, [&](::testing::Message& message) {
      message << std::setprecision(17) << "got " << value << ", want " << want[i] << " within "
              << bound[i];
    });
  });
  return differences.Result();
}

}  // namespace gemmd
