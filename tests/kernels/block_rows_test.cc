// SPDX-License-Identifier: Apache-2.0
//
// The CPU's products with block factors have the bits of their recipe, wherever blocks end;
// rows_test.cc compares the same rows with a reference in long double.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/block_sums.h"
#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/element.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_source.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr std::array<FactorType, 3> kFactorTypes = {FactorType::kF32, FactorType::kUe8m0,
                                                    FactorType::kUe4m3};

const Kernel& BlockKernel(ElementType a, ElementType b) {
  for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
    if (kernel.recipe.block_scaling == BlockScaling::kParts && kernel.a == a && kernel.b == b) {
      return kernel;
    }
  }
  ADD_FAILURE() << "no kernel of factors of blocks";
  return Catalog(DeviceKind::kCpu).front();
}

// A factor, according to its definition.
double FactorValue(FactorType type, const std::byte* at) {
  if (type == FactorType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  const int code = std::to_integer<int>(*at);
  if (type == FactorType::kUe8m0) return code == 255 ? NAN : std::ldexp(1.0, code - 127);
  return Decode(ElementType::kE4m3, static_cast<uint64_t>(code & 0x7f));
}

double FactorAt(const Product& product, bool is_a, int64_t matrix, int64_t line, int64_t p) {
  const Problem& problem = product.problem;
  if ((is_a ? problem.a_scale : problem.b_scale) != ScaleKind::kBlocks) return 1;
  const BlockScale& blocks = is_a ? problem.a_blocks : problem.b_blocks;
  const int64_t extent = is_a ? problem.m : problem.n;
  const int64_t down = (extent + blocks.lines - 1) / blocks.lines;
  const int64_t along = (problem.k + blocks.depth - 1) / blocks.depth;
  int64_t index = line / blocks.lines * along + p / blocks.depth;
  if (blocks.per_matrix) index += matrix * down * along;
  const int64_t bytes = blocks.type == FactorType::kF32 ? 4 : 1;
  return FactorValue(blocks.type,
                     (is_a ? product.a_factors : product.b_factors).data() + index * bytes);
}

// The recipe, one operation after the other (BlockScaling::kParts).
float WantedSum(const Product& product, int64_t matrix, int64_t i, int64_t j) {
  const Problem& problem = product.problem;
  const MatrixView a = {problem.a, problem.batch, product.a.data()};
  const MatrixView b = {problem.b, problem.batch, product.b.data()};
  const auto ends = [&](ScaleKind kind, const BlockScale& blocks, int64_t p) {
    return kind == ScaleKind::kBlocks && p % blocks.depth == 0;
  };
  volatile float total = 0;
  volatile float sum = 0;
  for (int64_t p = 1; p <= problem.k; ++p) {
    const auto x = static_cast<float>(a.value(matrix, i, p - 1));
    const auto y = static_cast<float>(b.value(matrix, p - 1, j));
    const volatile float product_of_elements = x * y;
    sum = sum + product_of_elements;
    const bool is_end = p == problem.k || ends(problem.a_scale, problem.a_blocks, p) ||
                        ends(problem.b_scale, problem.b_blocks, p);
    if (!is_end) continue;
    const volatile double factor =
        FactorAt(product, true, matrix, i, p - 1) * FactorAt(product, false, matrix, j, p - 1);
    const volatile float scaled = static_cast<float>(double{sum} * factor);
    total = total + scaled;
    sum = 0;
  }
  return total;
}

class BlockRowsTest : public testing::Test {
 protected:
  void SetUp() override { SetThreads(1); }

  // `dense` has the same matrices as `product`, whose A may be sparse.
  void ExpectBits(const Kernel& kernel, const Product& product, const Product& dense) {
    SCOPED_TRACE(DescribeCase(product.problem, Pattern::kRandom));
    const absl::StatusOr<std::vector<std::byte>> d = RunKernel(kernel, product, HostTarget());
    ASSERT_THAT(d, IsOk());
    const Problem& problem = product.problem;
    const MatrixView got = {problem.d, problem.batch, d->data()};
    for (int64_t matrix = 0; matrix < problem.batch; ++matrix) {
      for (int64_t i = 0; i < problem.m; ++i) {
        for (int64_t j = 0; j < problem.n; ++j) {
          const float want = WantedSum(dense, matrix, i, j);
          ASSERT_EQ(got.bits(matrix, i, j), Encode(ElementType::kF32, want))
              << "matrix " << matrix << ", row " << i << ", column " << j << ": got "
              << got.value(matrix, i, j) << ", want " << want;
        }
      }
    }
  }
  void ExpectBits(const Kernel& kernel, const Product& product) {
    ExpectBits(kernel, product, product);
  }

  FactorType AnyFactor() { return kFactorTypes[static_cast<size_t>(random_.Between(0, 2))]; }

  RandomSource random_;
};

// Shapes around the sizes of strip and panel, and blocks around those shapes, in every order.
TEST_F(BlockRowsTest, EveryShapeAndBlock) {
  SCOPED_TRACE(random_.trace());
  const Kernel& kernel = BlockKernel(ElementType::kE4m3, ElementType::kE5m2);
  const std::vector<int64_t> extents =
      kIsSanitized ? std::vector<int64_t>{1, 7} : std::vector<int64_t>{1, 5, 6, 7, 16, 17};
  int turn = 0;
  for (const int64_t m : extents) {
    for (const int64_t n : extents) {
      for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{16}, int64_t{33}}) {
        for (const int64_t depth : {1, 2, 16, 32, 100}) {
          Layouts layouts;
          layouts.a = ++turn % 2 == 0 ? Order::kRowMajor : Order::kColumnMajor;
          layouts.b = turn / 2 % 2 == 0 ? Order::kRowMajor : Order::kColumnMajor;
          layouts.d = turn / 4 % 2 == 0 ? Order::kRowMajor : Order::kColumnMajor;
          layouts.padding = turn % 3;
          Problem problem = MakeProblem(kernel, m, n, k, layouts);
          problem.a_blocks = {.type = kFactorTypes[static_cast<size_t>(turn % 3)],
                              .lines = random_.Between(1, m + 1),
                              .depth = depth};
          problem.b_blocks = {.type = AnyFactor(),
                              .lines = random_.Between(1, n + 1),
                              .depth = random_.Flip() ? depth : random_.Between(1, k + 2)};
          ExpectBits(kernel, FillCase(problem, Pattern::kRandom, random_));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(BlockRowsTest, EveryPairOfTypesAndFactorsOfOneOperandAlone) {
  SCOPED_TRACE(random_.trace());
  for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
    if (kernel.recipe.block_scaling != BlockScaling::kParts) continue;
    for (const FactorType type : kFactorTypes) {
      for (int operand = 0; operand < 3; ++operand) {
        Problem problem = MakeProblem(kernel, 7, 19, 70, Layouts{});
        problem.a_blocks = {.type = type, .lines = 1, .depth = 32};
        problem.b_blocks = {.type = type, .lines = 4, .depth = 32};
        if (operand == 1) problem.b_scale = ScaleKind::kNone;
        if (operand == 2) problem.a_scale = ScaleKind::kNone;
        ExpectBits(kernel, FillCase(problem, Pattern::kRandom, random_));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(BlockRowsTest, BatchesWithFactorsOfTheirOwn) {
  SCOPED_TRACE(random_.trace());
  const Kernel& kernel = BlockKernel(ElementType::kE2m1, ElementType::kE2m1);
  for (int choice = 0; choice < 16; ++choice) {
    Layouts layouts;
    layouts.batch = 3;
    layouts.batch_gap = 2;
    layouts.broadcasts_a = (choice & 1) != 0;
    layouts.broadcasts_b = (choice & 2) != 0;
    Problem problem = MakeProblem(kernel, 4, 18, 40, layouts);
    problem.a_blocks = {
        .type = FactorType::kUe4m3, .lines = 1, .depth = 16, .per_matrix = (choice & 4) != 0};
    problem.b_blocks = {
        .type = FactorType::kUe8m0, .lines = 3, .depth = 16, .per_matrix = (choice & 8) != 0};
    ExpectBits(kernel, FillCase(problem, Pattern::kRandom, random_));
    if (HasFatalFailure()) return;
  }
}

TEST_F(BlockRowsTest, SparseA) {
  SCOPED_TRACE(random_.trace());
  for (const ElementType type : {ElementType::kE4m3, ElementType::kE2m1}) {
    const Kernel& kernel = BlockKernel(type, ElementType::kE4m3);
    for (const int64_t k : {1, 15, 64, 70}) {
      Product dense = FillCase(MakeProblem(kernel, 9, 11, k, Layouts{}), Pattern::kRandom, random_);
      const Product sparse = WithSparseA(dense);
      ExpectBits(kernel, sparse, dense);
      if (HasFatalFailure()) return;
    }
  }
}

// Factors that no caller should send: NaN, infinities, zeros, subnormals and the largest.
TEST_F(BlockRowsTest, HostileFactors) {
  SCOPED_TRACE(random_.trace());
  const Kernel& kernel = BlockKernel(ElementType::kE5m2, ElementType::kE4m3);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kHostile[] = {NAN, kInfinity, -kInfinity, 0.0F, -0.0F, 1e-45F, 3e38F, -3e38F, 1};
  for (const Pattern pattern : {Pattern::kRandom, Pattern::kSpecials, Pattern::kZeros}) {
    for (const FactorType type : kFactorTypes) {
      Problem problem = MakeProblem(kernel, 9, 17, 21, Layouts{});
      problem.a_blocks = {.type = type, .lines = 1, .depth = 4};
      problem.b_blocks = {.type = type, .lines = 1, .depth = 6};
      Product product = FillCase(problem, pattern, random_);
      for (std::vector<std::byte>* const factors : {&product.a_factors, &product.b_factors}) {
        for (size_t i = 0; i < factors->size(); i += static_cast<size_t>(BytesOf(type))) {
          const float value = kHostile[random_.Between(0, 8)];
          if (type == FactorType::kF32) {
            std::memcpy(factors->data() + i, &value, sizeof(value));
          } else {
            (*factors)[i] = static_cast<std::byte>(random_.Bits());
          }
        }
      }
      ExpectBits(kernel, product);
      if (HasFatalFailure()) return;
    }
  }
}

// Several threads give the same bits for a large product as one thread.
TEST_F(BlockRowsTest, ThreadsDoNotMatter) {
  SCOPED_TRACE(random_.trace());
  const Kernel& kernel = BlockKernel(ElementType::kE4m3, ElementType::kE4m3);
  Problem problem = MakeProblem(kernel, 70, 150, 400, Layouts{});
  problem.a_blocks = {.lines = 1, .depth = 128};
  problem.b_blocks = {.lines = 128, .depth = 128};
  const Product product = FillCase(problem, Pattern::kRandom, random_);
  const absl::StatusOr<std::vector<std::byte>> alone = RunKernel(kernel, product, HostTarget());
  SetThreads(4);
  const absl::StatusOr<std::vector<std::byte>> shared = RunKernel(kernel, product, HostTarget());
  SetThreads(1);
  ASSERT_THAT(alone, IsOk());
  ASSERT_THAT(shared, IsOk());
  EXPECT_EQ(*alone, *shared);
}

// Every width of vectors gives the same bits.
TEST_F(BlockRowsTest, PathsAgree) {
  SCOPED_TRACE(random_.trace());
  for (int64_t turn = 0; turn < RandomSource::Cases(200); ++turn) {
    const int64_t k = random_.Between(1, 70);
    const auto draw = [&](int64_t count) {
      std::vector<float> values(static_cast<size_t>(count));
      for (float& value : values) {
        value = static_cast<float>(
            Decode(ElementType::kE4m3, Encode(ElementType::kE4m3, random_.Normal())));
      }
      return values;
    };
    const std::vector<float> a = draw(kStripRows * k);
    const std::vector<float> b = draw(k * kPanelColumns);
    const std::vector<float> a_factors = draw(kStripRows * k);
    const std::vector<float> b_factors = draw(k * kPanelColumns);
    const BlockScale a_blocks = {.depth = random_.Between(1, k)};
    const BlockScale b_blocks = {.depth = random_.Between(1, k)};
    float totals[3][kStripRows][kPanelColumns] = {};
    for (const BlockPath path : {BlockPath::kBaseline, BlockPath::kAvx2, BlockPath::kAvx512}) {
      if (!CanRun(path)) continue;
      Strip strip = {};
      for (int64_t i = 0; i < kStripRows; ++i) {
        strip.a[i] = a.data() + i * k;
        strip.a_factors[i] = a_factors.data() + i * k;
      }
      strip.b = b.data();
      strip.b_factors = b_factors.data();
      strip.k = k;
      strip.a_blocks = turn % 3 == 0 ? nullptr : &a_blocks;
      strip.b_blocks = turn % 3 == 1 ? nullptr : &b_blocks;
      strip.totals = totals[static_cast<size_t>(path)];
      SumStrip(path, strip);
      ASSERT_EQ(std::memcmp(totals[static_cast<size_t>(path)], totals[0], sizeof(totals[0])), 0)
          << "path " << static_cast<int>(path) << ", k " << k;
    }
  }
}

}  // namespace
}  // namespace gemmd
