// SPDX-License-Identifier: Apache-2.0
//
// The check of D finds every fault, in every layout.
#include "kernels/bench/gpu/output_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/bench/operands.h"
#include "kernels/bench/problem.h"
#include "tests/kernels/bench/simulating_device.h"
#include "tests/testing/status_matchers.h"

namespace gemmd::bench {
namespace {

using testing::HasSubstr;

constexpr char kDense[] = "mma.m16n8k16.f32.bf16.bf16.f32";
constexpr char kSparse[] = "mma.sp.m16n8k32.f32.f16.f16.f32";
constexpr char kHalf[] = "mma.m16n8k16.f16.f16.f16.f16";
constexpr char kInteger[] = "mma.m16n8k32.s32.s8.s8.s32";
constexpr char kFourBits[] = "mma.m16n8k64.s32.s4.u4.s32";
constexpr char kBits[] = "mma.m16n8k256.s32.b1.b1.s32.and.popc";

// A product that a row has computed correctly.
struct Product {
  const Kernel& kernel;
  Problem problem;
  std::vector<std::byte> a;
  std::vector<std::byte> b;
  std::vector<std::byte> d;

  OutputCheck Check(int64_t budget = kCheckBudget) const {
    SimulatingDevice device;
    return *CheckOutput(
        kernel, device.facts().target, problem,
        {.a = a, .b = b, .bias = {}, .a_factors = {}, .b_factors = {}, .dense_a = {}}, d, budget);
  }
  // Inverts the lowest bit of an element.
  void Spoil(int64_t row, int64_t column) {
    const MatrixLayout& layout = problem.d;
    const bool is_row_major = layout.order == Order::kRowMajor;
    const int64_t offset = (is_row_major ? row : column) * layout.line_stride_bytes() +
                           (is_row_major ? column : row) * BitsOf(layout.type) / 8;
    d[static_cast<size_t>(offset)] ^= std::byte{1};
  }
};

Product Multiply(const char* row, const Shape& shape, const Orders& orders = {},
                 int64_t offset = 0) {
  const Kernel& kernel = GpuRow(row);
  Product product{kernel, *MakeProblem(kernel, shape, orders, offset), {}, {}, {}};
  const Problem& problem = product.problem;
  product.a =
      problem.a.is_sparse() ? RandomSparse(problem.a, 1)->compressed : RandomDense(problem.a, 1);
  product.b = RandomDense(problem.b, 2);
  product.d.assign(static_cast<size_t>(BytesOf(problem.d)),
                   static_cast<std::byte>(PoisonOf(problem.d.type)));
  SimulatingDevice device;
  EXPECT_THAT(device.Launch(kernel, {.problem = problem,
                                     .target = device.facts().target,
                                     .a = product.a.data(),
                                     .b = product.b.data(),
                                     .c = nullptr,
                                     .bias = nullptr,
                                     .a_scale = {},
                                     .b_scale = {},
                                     .d = product.d.data(),
                                     .workspace = {}}),
              IsOk());
  return product;
}

class EveryRowTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Rows, EveryRowTest,
                         testing::Values(kDense, kSparse, kHalf, kInteger, kFourBits, kBits));

TEST_P(EveryRowTest, FindsNothingWhereAllIsRight) {
  const OutputCheck check = Multiply(GetParam(), {37, 29, 96}).Check();
  EXPECT_EQ(check.mismatches, 0) << check.first;
  EXPECT_EQ(check.compared, 37 * 29);
  EXPECT_EQ(check.elements, 37 * 29);
}

TEST_P(EveryRowTest, FindsOneWrongBitInASmallProduct) {
  Product product = Multiply(GetParam(), {37, 29, 96});
  product.Spoil(17, 23);
  const OutputCheck check = product.Check();
  EXPECT_EQ(check.mismatches, 1);
  EXPECT_THAT(check.first, HasSubstr("d[17][23]: got "));
}

// Samples compare what they draw with the right rows and columns.
TEST_P(EveryRowTest, SampleOfALargerProductIsRight) {
  const OutputCheck check = Multiply(GetParam(), {300, 200, 64}).Check(1 << 20);
  EXPECT_EQ(check.mismatches, 0) << check.first;
  EXPECT_EQ(check.compared, 64 * 64);
  EXPECT_EQ(check.elements, 300 * 200);
}

TEST(OutputCheckTest, IsRightInAllOrdersAndWithGaps) {
  for (const int64_t offset : {0, 3}) {
    for (const Orders& orders : AllOrders()) {
      for (const char* row : {kDense, kFourBits}) {
        const Product product = Multiply(row, {70, 50, 40}, orders, offset);
        EXPECT_EQ(product.Check().mismatches, 0) << NameOf(orders);
        EXPECT_EQ(product.Check(1 << 14).mismatches, 0) << NameOf(orders);
        EXPECT_LT(product.Check(1 << 14).compared, 70 * 50);
      }
    }
  }
}

TEST(OutputCheckTest, SamplesTheCorners) {
  for (const auto& [row, column] : {std::pair(0, 0), {0, 199}, {299, 0}, {299, 199}}) {
    Product product = Multiply(kDense, {300, 200, 64});
    product.Spoil(row, column);
    EXPECT_EQ(product.Check(1 << 20).mismatches, 1) << row << ", " << column;
  }
}

// A wrong tile in any place is hit by a sample.
TEST(OutputCheckTest, SamplesEveryTile) {
  Product product = Multiply(kDense, {512, 512, 16});
  for (int64_t row = 256; row < 320; ++row) {
    for (int64_t column = 64; column < 128; ++column) product.Spoil(row, column);
  }
  EXPECT_GE(product.Check(1 << 16).mismatches, 40);  // About 8 x 8 of 64 x 64.
}

TEST(OutputCheckTest, FindsOneElementThatWasNotWrittenWhereverItIs) {
  for (const char* row : {kDense, kHalf, kInteger}) {
    Product product = Multiply(row, {300, 200, 64}, {.d = Order::kColumnMajor});
    const int64_t size = BitsOf(product.problem.d.type) / 8;
    const int64_t offset = 77 * product.problem.d.line_stride_bytes() + 123 * size;
    std::fill_n(product.d.begin() + offset, size,
                static_cast<std::byte>(PoisonOf(product.problem.d.type)));
    const OutputCheck check = product.Check(1 << 10);
    EXPECT_GE(check.mismatches, 1);
    EXPECT_THAT(check.first,
                testing::AnyOf(HasSubstr("line 77, element 123"), HasSubstr("d[123][77]")));
  }
}

TEST(OutputCheckTest, FindsBytesWrittenBetweenLines) {
  Product product = Multiply(kDense, {20, 30, 16}, {}, 2);
  product.d[static_cast<size_t>(7 * product.problem.d.line_stride_bytes() + 30 * 4 + 5)] =
      std::byte{0};
  const OutputCheck check = product.Check();
  EXPECT_EQ(check.mismatches, 1);
  EXPECT_THAT(check.first, HasSubstr("behind line 7"));
}

TEST(OutputCheckTest, PlacesAreAscendingAndSpread) {
  for (const int64_t extent : {1, 2, 3, 63, 64, 65, 1000}) {
    for (const int64_t count : {1, 2, 16, 64}) {
      const std::vector<int64_t> places = DrawPlaces(extent, count, 5);
      EXPECT_EQ(static_cast<int64_t>(places.size()), std::min(count, extent));
      EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
      EXPECT_EQ(std::set<int64_t>(places.begin(), places.end()).size(), places.size());
      EXPECT_EQ(places.front(), 0);
      EXPECT_LT(places.back(), extent);
      EXPECT_EQ(places.back(), count > 1 ? extent - 1 : 0);
    }
  }
}

}  // namespace
}  // namespace gemmd::bench
