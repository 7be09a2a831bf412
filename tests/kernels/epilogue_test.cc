// SPDX-License-Identifier: Apache-2.0
//
// The epilogue, bit for bit, compared with its contract (kernel.h) implemented a second time, one
// element and one rounded step at a time.
#include "kernels/epilogue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/host.h"
#include "tests/kernels/page_end_buffer.h"
#include "tests/kernels/product_case.h"
#include "tests/kernels/stepwise_epilogue.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using enum ElementType;

class EpilogueTest : public testing::Test {
 protected:
  void SetUp() override { SetThreads(1); }

  Problem MakeProblem(int64_t m, int64_t n, ElementType d, Order d_order,
                      ElementType accumulation) {
    Layouts layouts;
    layouts.padding = 3;
    Problem problem;
    problem.m = m;
    problem.n = n;
    problem.k = 1;
    problem.a = MakeLayout(kS8, Order::kRowMajor, m, 1, Layouts{});
    problem.b = MakeLayout(kS8, Order::kRowMajor, 1, n, Layouts{});
    problem.d = MakeLayout(d, d_order, m, n, layouts);
    problem.c = MakeLayout(kF32, Order::kRowMajor, m, n, layouts);
    problem.accumulation = accumulation;
    return problem;
  }

  EpilogueCase Fill(const Problem& problem, ElementType stored, ElementType type) {
    EpilogueCase test;
    test.product = FillCase(problem, Pattern::kRandom, random_);
    const int64_t count = problem.m * problem.n;
    std::vector<double> values(static_cast<size_t>(count));
    for (double& value : values) {
      value = IsInteger(type) ? static_cast<double>(random_.Between(-100000, 100000))
                              : random_.AnyMagnitude(-8, 6);
    }
    test.accumulators.resize(static_cast<size_t>(count * BitsOf(stored) / 8));
    EncodeLine(stored, values.data(), count, test.accumulators.data());
    test.description = {.data = nullptr,
                        .stored = stored,
                        .leading_dimension = problem.d.line_length(),
                        .type = type,
                        .are_sums_of_signs = false};
    return test;
  }

  std::vector<std::byte> Run(const EpilogueCase& test) {
    const Product& product = test.product;
    const int64_t bytes = BytesOf("d", product.problem.d, 1)->least;
    std::byte* d = d_.Place(bytes, std::byte{0xff});
    const auto size = static_cast<int64_t>(test.accumulators.size());
    std::byte* copy = accumulators_.Place(size, std::byte{0});
    std::memcpy(copy, test.accumulators.data(), test.accumulators.size());
    Accumulators accumulators = test.description;
    accumulators.data = copy;
    const GemmArgs args = EpilogueArgs(product, d);
    ApplyEpilogue(args, 0, accumulators);
    EXPECT_TRUE(d_.FrontIsIntact());
    return std::vector<std::byte>(d, d + bytes);
  }

  void ExpectSteps(const Problem& problem, ElementType stored, ElementType type) {
    SCOPED_TRACE(DescribeCase(problem, Pattern::kRandom));
    const EpilogueCase test = Fill(problem, stored, type);
    const std::vector<std::byte> got = Run(test);
    const std::vector<std::byte> want = StepwiseEpilogue(test);
    ASSERT_TRUE(BitEqual({problem.d, 1, got.data()}, {problem.d, 1, want.data()}));
    ASSERT_TRUE(PaddingIsUntouched(problem, got));
  }

  RandomSource random_;
  PageEndBuffer d_;
  PageEndBuffer accumulators_;
};

// Every type of D, in both orders, with a C of every type and of both orders, over more than one
// tile.
TEST_F(EpilogueTest, EveryTypeOfCAndD) {
  SCOPED_TRACE(random_.trace());
  for (ElementType accumulation : {kF32, kF64, kS32}) {
    for (ElementType d : kAllElementTypes) {
      for (ElementType c : kAllElementTypes) {
        if (c == kB1 || d == kB1) continue;
        for (Order d_order : kOrders) {
          for (Order c_order : kOrders) {
            Problem problem = MakeProblem(19, 21, d, d_order, accumulation);
            problem.beta = 0.7;
            problem.c = MakeLayout(c, c_order, 19, 21, Layouts{.padding = 5});
            ExpectSteps(problem, accumulation, accumulation);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(EpilogueTest, EveryOption) {
  SCOPED_TRACE(random_.trace());
  constexpr ScaleKind kScales[] = {ScaleKind::kNone, ScaleKind::kTensor, ScaleKind::kVector};
  constexpr BiasAxis kAxes[] = {BiasAxis::kNone, BiasAxis::kRows, BiasAxis::kColumns};
  for (ElementType accumulation : {kF32, kF64, kS32}) {
    for (Order order : kOrders) {
      for (BiasAxis axis : kAxes) {
        for (ScaleKind a_scale : kScales) {
          for (ScaleKind b_scale : kScales) {
            for (ElementType bias : {kF64, kF32, kF16, kS32, kE2m1}) {
              Problem problem = MakeProblem(19, 261, kF32, order, accumulation);
              problem.alpha = 0.3;
              problem.beta = random_.Flip() ? -1.7 : 0;
              problem.bias_axis = axis;
              problem.bias_type = bias;
              problem.a_scale = a_scale;
              problem.b_scale = b_scale;
              ExpectSteps(problem, accumulation, accumulation);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST_F(EpilogueTest, EveryActivation) {
  for (ElementType accumulation : {kF32, kF64, kS32}) {
    for (Activation activation :
         {Activation::kRelu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu}) {
      Problem problem = MakeProblem(33, 65, kF32, Order::kRowMajor, accumulation);
      problem.activation = activation;
      problem.alpha = 0.01;
      // In f64, the formulas agree to the last bit of f32, although their terms may be grouped
      // differently.
      ExpectSteps(problem, accumulation, accumulation);
    }
  }
}

TEST_F(EpilogueTest, OddShapesOverSeveralTiles) {
  for (Order order : kOrders) {
    for (ElementType d : {kF32, kBf16, kE3m2, kS4}) {
      for (int64_t m : {1, 7, 300}) {
        for (int64_t n : {1, 15, 16, 17, 255, 256, 257, 600}) {
          Problem problem = MakeProblem(m, n, d, order, kF32);
          problem.beta = 0.5;
          ExpectSteps(problem, kF32, kF32);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Integers held in f64: exact, modulo 2^32.
TEST_F(EpilogueTest, IntegersInF64AreTakenModulo2To32) {
  Problem problem = MakeProblem(1, 4, kS32, Order::kRowMajor, kS32);
  EpilogueCase test = Fill(problem, kF64, kS32);
  const double sums[] = {4294967296.0 + 5, -4294967296.0 - 7, 2147483648.0, 9007199254740991.0};
  std::memcpy(test.accumulators.data(), sums, sizeof(sums));
  std::vector<std::byte> d = Run(test);
  int32_t got[4];
  std::memcpy(got, d.data(), sizeof(got));
  EXPECT_EQ(got[0], 5);
  EXPECT_EQ(got[1], -7);
  EXPECT_EQ(got[2], std::numeric_limits<int32_t>::min());
  EXPECT_EQ(got[3], -1);
}

TEST_F(EpilogueTest, SumsOfSignsBecomeCounts) {
  Problem problem = MakeProblem(1, 3, kS32, Order::kRowMajor, kS32);
  problem.k = 9;
  EpilogueCase test = Fill(problem, kS32, kS32);
  test.description.are_sums_of_signs = true;
  const int32_t sums[] = {9, -9, 1};  // 0, 9 and 4 products of -1.
  std::memcpy(test.accumulators.data(), sums, sizeof(sums));
  const std::vector<std::byte> d = Run(test);
  int32_t got[3];
  std::memcpy(got, d.data(), sizeof(got));
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[1], 9);
  EXPECT_EQ(got[2], 4);
}

// f64 sums that the epilogue does not change keep every bit. Any step turns a NaN into the one NaN
// of Encode.
TEST_F(EpilogueTest, PlainF64SumsKeepThePayloadOfTheirNans) {
  constexpr uint64_t kSums[] = {0x7ff8'0000'0000'0a01, 0xfff8'0000'0000'0b01, 0x7ff8'0000'0000'0000,
                                0x8000'0000'0000'0000};
  constexpr uint64_t kOneNan = 0x7fff'ffff'ffff'ffff;
  for (const double alpha : {1.0, 2.0}) {
    Problem problem = MakeProblem(1, 4, kF64, Order::kRowMajor, kF64);
    problem.alpha = alpha;
    EpilogueCase test = Fill(problem, kF64, kF64);
    std::memcpy(test.accumulators.data(), kSums, sizeof(kSums));
    const std::vector<std::byte> d = Run(test);
    uint64_t got[4];
    std::memcpy(got, d.data(), sizeof(got));
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(got[i], alpha == 1 ? kSums[i] : kOneNan) << i;
    EXPECT_EQ(got[3], kSums[3]);
  }
}

TEST_F(EpilogueTest, NanAndInfinityPassThrough) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float values[] = {kNan, kInfinity, -kInfinity, -0.0f};
  for (Activation activation : {Activation::kNone, Activation::kRelu}) {
    Problem problem = MakeProblem(1, 4, kF32, Order::kRowMajor, kF32);
    problem.activation = activation;
    problem.bias_axis = BiasAxis::kRows;
    EpilogueCase test = Fill(problem, kF32, kF32);
    test.product.bias.assign(4, std::byte{0});
    std::memcpy(test.accumulators.data(), values, sizeof(values));
    const std::vector<std::byte> d = Run(test);
    float got[4];
    std::memcpy(got, d.data(), sizeof(got));
    EXPECT_TRUE(std::isnan(got[0]));
    EXPECT_EQ(got[1], kInfinity);
    EXPECT_EQ(got[2], activation == Activation::kNone ? -kInfinity : 0);
    EXPECT_EQ(got[3], 0);
  }
}

}  // namespace
}  // namespace gemmd
