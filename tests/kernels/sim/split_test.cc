// SPDX-License-Identifier: Apache-2.0
//
// f32 products computed through f16, compared with their definition, element by element.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/matrix/element.h"
#include "kernels/matrix/split_float.h"
#include "kernels/mma/instruction.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/product.h"
#include "tests/kernels/sim/operand_families.h"
#include "tests/kernels/sim/watched_code.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using mma::Chip;
using mma::Instruction;

using Line = std::vector<float>;

const Instruction& SplitInstruction() {
  return *std::find_if(mma::kInstructions.begin(), mma::kInstructions.end(), HasSplitRows);
}

// The f16 nearest to the value.
double Half(double x) { return Decode(ElementType::kF16, Encode(ElementType::kF16, x)); }

// A small instruction of the same chains.
const Instruction& ChainInstruction() {
  return *std::find_if(mma::kInstructions.begin(), mma::kInstructions.end(),
                       [](const Instruction& instruction) {
                         return mma::NameOf(instruction).view() == "mma.m16n8k16.f32.f16.f16.f32";
                       });
}

// One element of a product of f16 by one chain of instructions.
float Chain(const std::vector<double>& a, const std::vector<double>& b) {
  const auto k = static_cast<int64_t>(a.size());
  Problem problem;
  problem.m = 1;
  problem.n = 1;
  problem.k = k;
  problem.a = TightLayout("a", ElementType::kF16, Order::kRowMajor, 1, k).value();
  problem.b = TightLayout("b", ElementType::kF16, Order::kColumnMajor, k, 1).value();
  problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, 1, 1).value();
  std::vector<std::byte> bytes_of_a(2 * a.size());
  std::vector<std::byte> bytes_of_b(2 * b.size());
  for (int64_t i = 0; i < k; ++i) {
    const auto at = static_cast<size_t>(i);
    StoreBits(ElementType::kF16, bytes_of_a.data(), i, Encode(ElementType::kF16, a[at]));
    StoreBits(ElementType::kF16, bytes_of_b.data(), i, Encode(ElementType::kF16, b[at]));
  }
  float sum = NAN;
  sim::Multiply(sim::Path::kScalar,
                {.instruction = ChainInstruction(),
                 .chip = Chip::kSm90,
                 .problem = problem,
                 .a = bytes_of_a.data(),
                 .b = bytes_of_b.data()},
                {.data = reinterpret_cast<std::byte*>(&sum),
                 .type = ElementType::kF32,
                 .order = Order::kRowMajor,
                 .leading_dimension = 1});
  return sum;
}

// A split line according to its definition, in f64.
struct SplitByValue {
  int exponent = 0;
  bool fits = true;
  bool is_whole = true;
  std::vector<double> high;
  std::vector<double> low;

  explicit SplitByValue(const Line& line) {
    float largest = 0;
    float smallest = std::numeric_limits<float>::infinity();
    for (const float x : line) {
      if (!std::isfinite(x)) fits = false;
      largest = std::max(largest, std::fabs(x));
      if (x != 0) smallest = std::min(smallest, std::fabs(x));
    }
    if (largest != 0 && largest < 0x1p-100F) fits = false;
    if (!fits || largest == 0) {
      high.resize(line.size());
      low.resize(line.size());
      return;
    }
    exponent = std::ilogb(largest);
    // Subnormal numbers count like those below the smallest normal one.
    is_whole = exponent - std::max(std::ilogb(smallest), -127) <= 28;
    for (const float x : line) {
      const double scaled = std::ldexp(double{x}, 14 - exponent);
      high.push_back(Half(scaled));
      low.push_back(Half((scaled - high.back()) * 4096));
    }
  }
};

float Exact(const Line& a, const Line& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum = std::fma(double{a[i]}, double{b[i]}, sum);
  return static_cast<float>(sum);
}

float Want(const Line& a, const Line& b) {
  constexpr size_t kPart = 64;
  constexpr size_t kStep = 16;
  const size_t k = a.size();
  const SplitByValue of_a(a);
  const SplitByValue of_b(b);
  if (k < kPart || !of_a.fits || !of_b.fits) return Exact(a, b);
  float main = 0;
  std::vector<double> cross_a;
  std::vector<double> cross_b;
  const auto part_of = [](const std::vector<double>& line, size_t first, size_t length) {
    std::vector<double> part(
        line.begin() + static_cast<std::ptrdiff_t>(first),
        line.begin() + static_cast<std::ptrdiff_t>(std::min(first + length, line.size())));
    part.resize(length);
    return part;
  };
  for (size_t first = 0; first < k; first += kPart) {
    main += Chain(part_of(of_a.high, first, kPart), part_of(of_b.high, first, kPart));
  }
  for (size_t first = 0; first < k; first += kStep) {
    for (const bool is_low_of_a : {true, false}) {
      const auto from_a = part_of(is_low_of_a ? of_a.low : of_a.high, first, kStep);
      const auto from_b = part_of(is_low_of_a ? of_b.high : of_b.low, first, kStep);
      cross_a.insert(cross_a.end(), from_a.begin(), from_a.end());
      cross_b.insert(cross_b.end(), from_b.begin(), from_b.end());
    }
  }
  const float sum = main + Chain(cross_a, cross_b) / 4096;
  const bool is_whole = of_a.is_whole && of_b.is_whole;
  if (!is_whole && std::fabs(sum) < static_cast<float>(k)) return Exact(a, b);
  const int exponent = of_a.exponent + of_b.exponent - 28;
  return std::ldexp(std::ldexp(sum, exponent >> 1), exponent - (exponent >> 1));
}

// A product's operands by value, and their layout in memory.
struct SplitCase {
  Problem problem;
  std::vector<std::byte> a;
  std::vector<std::byte> b;

  Line RowOfA(int64_t row) const {
    Line line;
    for (int64_t i = 0; i < problem.k; ++i) line.push_back(At(problem.a, a, row, i));
    return line;
  }
  Line ColumnOfB(int64_t column) const {
    Line line;
    for (int64_t i = 0; i < problem.k; ++i) line.push_back(At(problem.b, b, i, column));
    return line;
  }
  static float At(const MatrixLayout& layout, const std::vector<std::byte>& bytes, int64_t row,
                  int64_t column) {
    const bool is_row_major = layout.order == Order::kRowMajor;
    float value;
    std::memcpy(&value,
                bytes.data() + (is_row_major ? row : column) * layout.line_stride_bytes() +
                    (is_row_major ? column : row) * 4,
                sizeof(value));
    return value;
  }
};

// Operands of random orders.
SplitCase MakeSplitCase(Family family, int64_t m, int64_t n, int64_t k, RandomSource& random) {
  Instruction instruction = SplitInstruction();
  instruction.a = ElementType::kF32;
  instruction.b = ElementType::kF32;
  const FamilyCase made = MakeCase(instruction, family, m, n, k, random);
  SplitCase one = {made.problem, made.a, made.b};
  const auto turn = [&](std::string_view field, MatrixLayout& layout,
                        std::vector<std::byte>& bytes) {
    const MatrixLayout from = layout;
    const std::vector<std::byte> source = bytes;
    layout = TightLayout(field, ElementType::kF32,
                         from.order == Order::kRowMajor ? Order::kColumnMajor : Order::kRowMajor,
                         from.rows, from.columns)
                 .value();
    const bool is_row_major = layout.order == Order::kRowMajor;
    for (int64_t i = 0; i < from.rows; ++i) {
      for (int64_t j = 0; j < from.columns; ++j) {
        const float value = SplitCase::At(from, source, i, j);
        std::memcpy(bytes.data() + (is_row_major ? i : j) * layout.line_stride_bytes() +
                        (is_row_major ? j : i) * 4,
                    &value, sizeof(value));
      }
    }
  };
  if (random.Flip()) turn("a", one.problem.a, one.a);
  if (random.Flip()) turn("b", one.problem.b, one.b);
  if (random.Flip()) one.problem.d.order = Order::kColumnMajor;
  return one;
}

// Row major, whatever the order of the accumulators.
std::vector<float> MultiplyBy(sim::Path path, const SplitCase& one) {
  const Problem& problem = one.problem;
  const bool is_row_major = problem.d.order == Order::kRowMajor;
  const int64_t stride = (is_row_major ? problem.n : problem.m) + 3;
  std::vector<float> sums(static_cast<size_t>(stride * (is_row_major ? problem.m : problem.n)),
                          NAN);
  std::vector<uint32_t> memory(
      static_cast<size_t>(sim::SplitBytes(problem).value().value() / 4 + 1), 0x7fc12345);
  sim::MultiplySplit(path,
                     {.instruction = SplitInstruction(),
                      .chip = Chip::kSm90,
                      .problem = problem,
                      .a = one.a.data(),
                      .b = one.b.data(),
                      .promotion_k = kSplitPromotionK},
                     {.data = reinterpret_cast<std::byte*>(sums.data()),
                      .type = ElementType::kF32,
                      .order = problem.d.order,
                      .leading_dimension = stride},
                     reinterpret_cast<std::byte*>(memory.data()));
  EXPECT_EQ(memory.back(), 0x7fc12345) << "bytes beyond SplitBytes were written";
  std::vector<float> d;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      d.push_back(sums[static_cast<size_t>(is_row_major ? i * stride + j : j * stride + i)]);
    }
  }
  return d;
}

uint32_t BitsOfSum(float sum) {
  return std::isnan(sum) ? 0x7fffffff : std::bit_cast<uint32_t>(sum);
}

class SplitTest : public testing::TestWithParam<Family> {
 protected:
  void TearDown() override { TakeWatchedCode(); }
};

TEST_P(SplitTest, ElementsAreThoseOfTheDefinition) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const int64_t k : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{128},
                          random.Between(66, 300), random.Between(66, 300)}) {
    const SplitCase one =
        MakeSplitCase(GetParam(), random.Between(1, 7), random.Between(1, 7), k, random);
    for (const sim::Path path : {sim::Path::kScalar, sim::Path::kAvx2, sim::Path::kAvx512}) {
      if (!sim::CanRun(path, SplitInstruction(), Chip::kSm90)) continue;
      const std::vector<float> d = MultiplyBy(path, one);
      for (int64_t i = 0; i < one.problem.m; ++i) {
        for (int64_t j = 0; j < one.problem.n; ++j) {
          const float got = d[static_cast<size_t>(i * one.problem.n + j)];
          const float want = Want(one.RowOfA(i), one.ColumnOfB(j));
          ASSERT_EQ(BitsOfSum(got), BitsOfSum(want))
              << "row " << i << ", column " << j << ", k " << k << ", path "
              << static_cast<int>(path) << ": got " << got << ", want " << want;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, SplitTest, testing::ValuesIn(kAllFamilies),
                         [](const testing::TestParamInfo<Family>& param) {
                           return "Family" + std::to_string(static_cast<int>(param.param));
                         });

// A product of one row and one column.
SplitCase MakeLineCase(const Line& a, const Line& b) {
  SplitCase one;
  const auto k = static_cast<int64_t>(a.size());
  one.problem.m = 1;
  one.problem.n = 1;
  one.problem.k = k;
  one.problem.a = TightLayout("a", ElementType::kF32, Order::kRowMajor, 1, k).value();
  one.problem.b = TightLayout("b", ElementType::kF32, Order::kColumnMajor, k, 1).value();
  one.problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, 1, 1).value();
  const auto bytes_of = [](const Line& line) {
    std::vector<std::byte> bytes(line.size() * 4);
    std::memcpy(bytes.data(), line.data(), bytes.size());
    return bytes;
  };
  one.a = bytes_of(a);
  one.b = bytes_of(b);
  return one;
}

class SplitLinesTest : public testing::Test {
 protected:
  static constexpr size_t kDepth = 100;
  void TearDown() override { TakeWatchedCode(); }
  static float Product(const Line& a, const Line& b) {
    return MultiplyBy(sim::BestPath(SplitInstruction(), Chip::kSm90), MakeLineCase(a, b)).front();
  }
};

TEST_F(SplitLinesTest, InfinitiesStayInfinite) {
  Line a(kDepth, 1.5F);
  Line b(kDepth, 3.0F);
  a[7] = std::numeric_limits<float>::infinity();
  b[7] = 0x1p-120F;
  EXPECT_EQ(Product(a, b), std::numeric_limits<float>::infinity());
  b[7] = -2;
  EXPECT_EQ(Product(a, b), -std::numeric_limits<float>::infinity());
  b[7] = 0;
  EXPECT_TRUE(std::isnan(Product(a, b)));
}

TEST_F(SplitLinesTest, SubnormalsCount) {
  const Line a(kDepth, 0x1.8p-140F);
  const Line b(kDepth, 0x1p100F);
  EXPECT_EQ(Product(a, b), 100 * 0x1.8p-40F);
  EXPECT_EQ(Product(b, a), 100 * 0x1.8p-40F);
}

// The part that two f16 of a line cannot represent decides, since the large elements meet zeros.
TEST_F(SplitLinesTest, SmallElementsBesideLargeOnesCount) {
  Line a(kDepth, 0x1.234567p-60F);
  Line b(kDepth, 1);
  a[3] = 0x1p30F;
  b[3] = 0;
  EXPECT_EQ(Product(a, b), static_cast<float>(99 * double{0x1.234567p-60F}));
  EXPECT_EQ(Product(b, a), static_cast<float>(99 * double{0x1.234567p-60F}));
}

TEST_F(SplitLinesTest, LinesOfZerosGiveZero) {
  const Line zeros(kDepth, 0);
  EXPECT_EQ(Product(zeros, Line(kDepth, 0x1p100F)), 0);
  EXPECT_EQ(Product(zeros, zeros), 0);
}

TEST_F(SplitLinesTest, SumsBeyondTheLargestNumberAreInfinite) {
  const Line a(kDepth, 0x1p100F);
  EXPECT_EQ(Product(a, Line(kDepth, 0x1p60F)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(Product(a, Line(kDepth, 0x1p-60F)), 100 * 0x1p40F);
}

// The largest error divided by the largest element, computed through f16 and by one chain of fused
// multiply-adds in f32, as libraries do.
std::pair<double, double> ErrorsOf(const SplitCase& one) {
  const std::vector<float> d = MultiplyBy(sim::BestPath(SplitInstruction(), Chip::kSm90), one);
  double largest = 0;
  double split = 0;
  double chained = 0;
  for (int64_t i = 0; i < one.problem.m; ++i) {
    for (int64_t j = 0; j < one.problem.n; ++j) {
      const Line a = one.RowOfA(i);
      const Line b = one.ColumnOfB(j);
      double exact = 0;
      float chain = 0;
      for (size_t k = 0; k < a.size(); ++k) {
        exact += double{a[k]} * double{b[k]};
        chain = std::fma(a[k], b[k], chain);
      }
      const double got = d[static_cast<size_t>(i * one.problem.n + j)];
      largest = std::max(largest, std::fabs(exact));
      if (!(std::fabs(got - exact) <= split)) split = std::fabs(got - exact);
      chained = std::max(chained, std::fabs(double{chain} - exact));
    }
  }
  return {split / largest, chained / largest};
}

TEST_F(SplitLinesTest, ErrorsStayBelowThoseOfSumsInF32) {
  constexpr int64_t kExtent = 24;
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const auto normal = [&] { return random.Normal(); };
  const auto uniform = [&] { return static_cast<double>(random.Bits() % (1 << 24)) * 0x1p-24; };
  const auto wide = [&] {
    return std::ldexp(random.Normal(), static_cast<int>(random.Between(-12, 12)));
  };
  const auto check = [&](const char* name, int64_t k, const auto& draw) {
    SplitCase one = MakeSplitCase(Family::kNormal, kExtent, kExtent, k, random);
    for (std::vector<std::byte>* const matrix : {&one.a, &one.b}) {
      for (int64_t i = 0; i < kExtent * k; ++i) {
        StoreBits(ElementType::kF32, matrix->data(), i, Encode(ElementType::kF32, draw()));
      }
    }
    const auto [split, chained] = ErrorsOf(one);
    EXPECT_LE(split, chained) << name << ", k " << k;
  };
  for (const int64_t k : {63, 1024, 4096}) {
    check("normal", k, normal);
    check("uniform", k, uniform);
    check("wide", k, wide);
  }
}

}  // namespace
}  // namespace gemmd
