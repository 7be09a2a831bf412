// SPDX-License-Identifier: Apache-2.0
//
// Every row of the catalogue that runs on this processor, over small shapes in every order and with
// every pattern of data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "tests/kernels/product_case.h"
#include "tests/kernels/reference.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_source.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

constexpr int64_t kTile = 16;

const std::vector<int64_t> kFewExtents = {0, 1, kTile + 1};
const std::vector<int64_t> kExtents = {0, 1, kTile - 1, kTile, kTile + 1, 2 * kTile + 3};

class RowTest : public testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    SetThreads(1);
    const absl::Status available = kernel_.available(HostTarget());
    if (!available.ok()) GTEST_SKIP() << available.message();
  }

  // Runs the kernel and compares D with the reference: bit for bit if the recipe is exact and D is
  // the unmodified accumulators.
  void ExpectCorrect(const Product& product) {
    const Problem& problem = product.problem;
    const absl::StatusOr<std::vector<std::byte>> d = RunKernel(kernel_, product, HostTarget());
    ASSERT_THAT(d, IsOk());
    ASSERT_TRUE(PaddingIsUntouched(problem, *d));
    const MatrixView got = {problem.d, problem.batch, d->data()};
    if (kernel_.recipe.exact && problem.is_plain() && problem.d.type == ElementType::kS32) {
      const std::vector<int32_t> exact = MakeExactReference(product);
      const MatrixLayout tight =
          TightLayout("d", ElementType::kS32, Order::kRowMajor, problem.m, problem.n).value();
      ASSERT_TRUE(
          BitEqual(got, {tight, problem.batch, reinterpret_cast<const std::byte*>(exact.data())}));
    } else {
      const Reference reference = MakeReference(product, kernel_.recipe);
      ASSERT_TRUE(WithinBound(got, reference.want, reference.bound));
    }
  }

  void ExpectCorrect(const Problem& problem, Pattern pattern) {
    SCOPED_TRACE(DescribeCase(problem, pattern));
    ExpectCorrect(FillCase(problem, pattern, random_));
  }

  // Three leading dimensions alternate with eight orders and eight patterns, so that every shape
  // meets every order, and every order every pattern.
  void ExpectShapes(const std::vector<int64_t>& extents) {
    SCOPED_TRACE(random_.trace());
    size_t turn = 0;
    for (int64_t m : extents) {
      for (int64_t n : extents) {
        for (int64_t k : extents) {
          for (int order = 0; order < 8; ++order) {
            Layouts layouts;
            layouts.a = kOrders[order & 1];
            layouts.b = kOrders[order >> 1 & 1];
            layouts.d = kOrders[order >> 2 & 1];
            layouts.padding = order % 3 * 3;
            Problem problem = MakeProblem(kernel_, m, n, k, layouts);
            if (kernel_.a == ElementType::kB1 && turn % 2 == 0) {
              problem.bit_operation = BitOperation::kXor;
            }
            ExpectCorrect(problem, kAllPatterns[turn++ % kAllPatterns.size()]);
            if (HasFatalFailure()) return;
          }
          ++turn;
        }
      }
    }
  }

  // Deep enough for libraries to divide k into blocks, and for sums of 8-bit integers to exceed
  // s32.
  void ExpectDeepProducts() {
    SCOPED_TRACE(random_.trace());
    for (Pattern pattern : {Pattern::kLargest, Pattern::kRandom}) {
      if (kIsSanitized && pattern != Pattern::kRandom) continue;
      ExpectCorrect(MakeProblem(kernel_, 3, 2, 140001, Layouts{}), pattern);
      ExpectCorrect(MakeProblem(kernel_, 1, 1, 140001, Layouts{}), pattern);
    }
  }

  void ExpectLargerThanBlocks() {
    SCOPED_TRACE(random_.trace());
    for (Order order : kOrders) {
      if (kIsSanitized && order == Order::kColumnMajor) continue;
      Layouts layouts;
      layouts.b = order;
      layouts.d = order;
      ExpectCorrect(MakeProblem(kernel_, 193, 97, 401, layouts), Pattern::kRandom);
      ExpectCorrect(MakeProblem(kernel_, 1, 517, 301, layouts), Pattern::kRandom);
      ExpectCorrect(MakeProblem(kernel_, 517, 1, 301, layouts), Pattern::kRandom);
    }
  }

  const Kernel& kernel_ = GetParam();
  RandomSource random_;
};

TEST_P(RowTest, EveryShapeInEveryOrder) { ExpectShapes(kFewExtents); }

TEST_P(RowTest, EveryPatternInEveryOrder) {
  SCOPED_TRACE(random_.trace());
  for (Pattern pattern : kAllPatterns) {
    for (int order = 0; order < 8; ++order) {
      Layouts layouts;
      layouts.a = kOrders[order & 1];
      layouts.b = kOrders[order >> 1 & 1];
      layouts.d = kOrders[order >> 2 & 1];
      ExpectCorrect(MakeProblem(kernel_, 2 * kTile + 3, kTile + 1, kTile + 5, layouts), pattern);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RowTest, BatchesWithGapsAndBroadcasts) {
  SCOPED_TRACE(random_.trace());
  for (int broadcast = 0; broadcast < 4; ++broadcast) {
    for (int64_t batch : {0, 1, 3}) {
      for (Order order : kOrders) {
        Layouts layouts;
        layouts.batch = batch;
        layouts.batch_gap = 5;
        layouts.padding = 1;
        layouts.a = order;
        layouts.d = order;
        layouts.broadcasts_a = (broadcast & 1) != 0;
        layouts.broadcasts_b = (broadcast & 2) != 0;
        ExpectCorrect(MakeProblem(kernel_, kTile - 1, kTile + 1, 7, layouts), Pattern::kRandom);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(RowTest, EpilogueOnTopOfTheProduct) {
  SCOPED_TRACE(random_.trace());
  // Factors for rows of A may be combined with factors for blocks of B.
  const bool is_scaled = BitsOf(kernel_.a) == 8 && BitsOf(kernel_.b) == 8;
  for (ElementType d_type : kAllElementTypes) {
    if (d_type == ElementType::kB1) continue;
    for (Order order : kOrders) {
      Layouts layouts;
      layouts.d = order;
      layouts.padding = 2;
      layouts.batch = 2;
      Problem problem = MakeProblem(kernel_, kTile + 1, kTile - 1, 9, layouts);
      problem.d = MakeLayout(d_type, order, problem.m, problem.n, layouts);
      ExpectCorrect(problem, Pattern::kRamps);
      problem.alpha = 0.37;
      problem.beta = -1.25;
      problem.bias_axis = order == Order::kRowMajor ? BiasAxis::kRows : BiasAxis::kColumns;
      problem.bias_type = ElementType::kF32;
      problem.activation = Activation::kSilu;
      if (is_scaled) {
        problem.a_scale = ScaleKind::kVector;
        if (!problem.has_block_scales()) problem.b_scale = ScaleKind::kTensor;
      }
      ExpectCorrect(problem, Pattern::kRamps);
      if (HasFatalFailure()) return;
    }
  }
}

// Without a product, A and B are not read (they are null here), and D is beta C plus bias.
TEST_P(RowTest, NoProduct) {
  for (bool has_depth : {false, true}) {
    Problem problem = MakeProblem(kernel_, 5, 9, has_depth ? 4 : 0, Layouts{.padding = 1});
    problem.alpha = has_depth ? 0 : 1;
    ExpectCorrect(problem, Pattern::kSpecials);
    problem.beta = 2;
    problem.bias_axis = BiasAxis::kColumns;
    if (BitsOf(kernel_.a) == 8) problem.a_scale = ScaleKind::kVector;
    ExpectCorrect(problem, Pattern::kSpecials);
  }
}

// C is not read if beta is 0, even if there is one.
TEST_P(RowTest, UnreadCDoesNotMatter) {
  const Problem problem = MakeProblem(kernel_, 5, 9, 7, Layouts{});
  Product product = FillCase(problem, Pattern::kRamps, random_);
  product.c.assign(5 * 9 * 8, std::byte{0xff});  // NaN in every type of float.
  ExpectCorrect(product);
}

// A row gives the same bits every time, wherever its operands are, and for every m and batch if it
// claims so.
TEST_P(RowTest, RepeatsItsBits) {
  SCOPED_TRACE(random_.trace());
  ASSERT_TRUE(kernel_.deterministic);
  const Problem problem = MakeProblem(kernel_, 67, 45, 203, Layouts{});
  const Product product = FillCase(problem, Pattern::kRandom, random_);
  const absl::StatusOr<std::vector<std::byte>> first = RunKernel(kernel_, product, HostTarget());
  const absl::StatusOr<std::vector<std::byte>> second = RunKernel(kernel_, product, HostTarget());
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(*first, *second);
  std::vector<std::byte> moved(product.a.size() + 4);
  std::copy(product.a.begin(), product.a.end(), moved.begin() + 4);
  std::vector<std::byte> d(first->size());
  std::vector<std::byte> workspace(static_cast<size_t>(kernel_.workspace_bytes(problem).value()) +
                                   64);
  const auto misaligned = reinterpret_cast<uintptr_t>(workspace.data()) % 64;
  const GemmArgs args = {.problem = problem,
                         .target = HostTarget(),
                         .a = moved.data() + 4,
                         .b = product.b.data(),
                         .c = nullptr,
                         .bias = nullptr,
                         .a_scale = {},
                         .b_scale = {},
                         .d = d.data(),
                         .workspace = absl::MakeSpan(workspace).subspan(64 - misaligned),
                         .a_factors = product.a_factors.data(),
                         .b_factors = product.b_factors.data()};
  ASSERT_THAT(kernel_.launch(args), IsOk());
  EXPECT_EQ(*first, d);
}

std::string PrintName(const testing::TestParamInfo<Kernel>& row) {
  std::string name(row.param.name);
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Catalog, RowTest, testing::ValuesIn(Catalog(DeviceKind::kCpu)), PrintName);

// The first row of each engine and of each pair of types that it computes with: the others only
// differ in their conversions.
std::vector<Kernel> OneOfEachEngine() {
  std::vector<Kernel> rows;
  for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
    const bool is_known = std::any_of(rows.begin(), rows.end(), [&](const Kernel& row) {
      return row.engine == kernel.engine && row.recipe.a_compute == kernel.recipe.a_compute &&
             row.recipe.b_compute == kernel.recipe.b_compute;
    });
    if (!is_known) rows.push_back(kernel);
  }
  return rows;
}

class EngineTest : public RowTest {};
TEST_P(EngineTest, EveryShapeInEveryOrder) { ExpectShapes(kIsSanitized ? kFewExtents : kExtents); }
TEST_P(EngineTest, DeepProducts) { ExpectDeepProducts(); }
TEST_P(EngineTest, LargerThanTheBlocksOfTheLibraries) { ExpectLargerThanBlocks(); }
INSTANTIATE_TEST_SUITE_P(Catalog, EngineTest, testing::ValuesIn(OneOfEachEngine()), PrintName);

class RowExhaustive : public RowTest {};
TEST_P(RowExhaustive, EveryShapeInEveryOrder) { ExpectShapes(kExtents); }
TEST_P(RowExhaustive, DeepProducts) { ExpectDeepProducts(); }
TEST_P(RowExhaustive, LargerThanTheBlocksOfTheLibraries) { ExpectLargerThanBlocks(); }
INSTANTIATE_TEST_SUITE_P(Catalog, RowExhaustive, testing::ValuesIn(Catalog(DeviceKind::kCpu)),
                         PrintName);

}  // namespace
}  // namespace gemmd
