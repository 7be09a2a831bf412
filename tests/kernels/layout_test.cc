// SPDX-License-Identifier: Apache-2.0
//
// Sizes of layouts and problems, at their limits and compared with 128-bit arithmetic.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/problem.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using enum ElementType;

constexpr int64_t kLargest = INT64_MAX;

MatrixLayout TightRows(ElementType type, int64_t rows, int64_t columns) {
  return TightLayout("x", type, Order::kRowMajor, rows, columns).value();
}

TEST(LayoutTest, BytesOfPackedLines) {
  MatrixLayout layout = TightRows(kE3m2, 3, 5);  // 30 bits, 4 bytes a line.
  EXPECT_EQ(layout.batch_stride_bytes, 12);
  layout.leading_dimension = 8;  // 6 bytes a line.
  layout.batch_stride_bytes = 20;
  const ByteCount bytes = BytesOf("a", layout, 2).value();
  EXPECT_EQ(bytes.least, 20 + 2 * 6 + 4);
  EXPECT_EQ(bytes.full, 20 + 3 * 6);
  EXPECT_EQ(BytesOf("a", layout, 0).value().least, 0);
  layout.batch_stride_bytes = 0;
  EXPECT_EQ(BytesOf("a", layout, 1000).value().full, 18);
  EXPECT_EQ(BytesOf("a", TightRows(kF64, 0, 7), 3).value().full, 0);
}

TEST(LayoutTest, TightLayoutsThatLeave63Bits) {
  EXPECT_THAT(TightLayout("a", kF32, Order::kRowMajor, int64_t{1} << 40, int64_t{1} << 40),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "a: got 1099511627776x1099511627776 elements of type f32, want sizes in "
                       "bytes below 2^63"));
  EXPECT_THAT(TightLayout("a", kF32, Order::kRowMajor, 0, int64_t{1} << 40), IsOk());
}

// Compared with 128-bit arithmetic, with extents around every power of two.
TEST(LayoutTest, BytesAgreeWith128Bits) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const auto extent = [&] {
    const auto power = static_cast<int64_t>(uint64_t{1} << random.Between(0, 62));
    return std::max<int64_t>(0, power + random.Between(-2, 2));
  };
  int fits = 0;
  int overflows = 0;
  for (int i = 0; i < 200000; ++i) {
    MatrixLayout layout;
    layout.type = kAllElementTypes[static_cast<size_t>(random.Between(0, 15))];
    layout.order = random.Flip() ? Order::kRowMajor : Order::kColumnMajor;
    layout.rows = extent();
    layout.columns = extent();
    layout.leading_dimension = std::max(layout.line_length(), random.Flip() ? extent() : 0);
    layout.batch_stride_bytes = random.Flip() ? extent() : 0;
    const int64_t batch = random.Flip() ? 1 : extent();

    const __int128 bits = BitsOf(layout.type);
    const __int128 line_bits = layout.leading_dimension * bits;
    const __int128 stride = (line_bits + 7) / 8;
    const __int128 last = (layout.line_length() * bits + 7) / 8;
    const bool has_line = line_bits + 7 <= kLargest;
    __int128 least = 0;
    __int128 full = 0;
    if (has_line && !layout.empty() && batch > 0) {
      const __int128 before = static_cast<__int128>(batch - 1) * layout.batch_stride_bytes;
      least = before + (layout.lines() - 1) * stride + last;
      full = before + layout.lines() * stride;
    }
    const bool is_representable = has_line && full <= kLargest && least <= kLargest;
    const absl::StatusOr<ByteCount> bytes = BytesOf("a", layout, batch);
    ASSERT_EQ(bytes.ok(), is_representable) << bytes.status();
    (is_representable ? fits : overflows) += 1;
    if (!is_representable) continue;
    ASSERT_EQ(bytes->least, static_cast<int64_t>(least));
    ASSERT_EQ(bytes->full, static_cast<int64_t>(full));
  }
  EXPECT_GT(fits, 10000);
  EXPECT_GT(overflows, 10000);
}

TEST(LayoutTest, TightBytesAgreeWith128Bits) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (int i = 0; i < 100000; ++i) {
    const ElementType type = kAllElementTypes[static_cast<size_t>(random.Between(0, 15))];
    const int64_t rows = random.Between(0, int64_t{1} << random.Between(0, 62));
    const int64_t columns = random.Between(0, int64_t{1} << random.Between(0, 62));
    const __int128 line = (static_cast<__int128>(columns) * BitsOf(type) + 7) / 8;
    const absl::StatusOr<MatrixLayout> layout =
        TightLayout("a", type, Order::kRowMajor, rows, columns);
    const bool is_representable = line <= kLargest && line * rows <= kLargest;
    ASSERT_EQ(layout.ok(), is_representable);
    if (is_representable) {
      ASSERT_EQ(layout->batch_stride_bytes, static_cast<int64_t>(line * rows));
    }
  }
}

TEST(LayoutTest, OperationsAgreeWith128Bits) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (int i = 0; i < 100000; ++i) {
    Problem problem;
    problem.accumulation = kS32;
    problem.m = random.Between(1, int64_t{1} << random.Between(0, 30));
    problem.n = random.Between(1, int64_t{1} << random.Between(0, 30));
    problem.k = random.Between(1, int64_t{1} << random.Between(0, 30));
    problem.a = TightRows(kB1, problem.m, problem.k);
    problem.b = TightRows(kB1, problem.k, problem.n);
    problem.d = TightRows(kS4, problem.m, problem.n);
    const __int128 operations = static_cast<__int128>(2) * problem.m * problem.n * problem.k;
    ASSERT_EQ(Validate(problem).ok(), operations <= kLargest);
    if (operations <= kLargest) {
      ASSERT_EQ(Operations(problem), static_cast<int64_t>(operations));
    }
  }
}

}  // namespace
}  // namespace gemmd
