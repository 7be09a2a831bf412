// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/epilogue_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/epilogue.h"
#include "kernels/matrix/text.h"

namespace gemmd {
namespace {

using enum ElementType;

constexpr ElementType kAccumulators[] = {kF32, kF64, kS32};

// D and C with gaps between lines and matrices, in whole elements.
Problem MakeEpilogueProblem(int64_t m, int64_t n, int64_t batch, ElementType d, Order d_order,
                            ElementType accumulation) {
  const Layouts layouts = {.padding = 3, .batch = batch, .batch_gap = 5};
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = 1;
  problem.batch = batch;
  problem.a = MakeLayout(kS8, Order::kRowMajor, m, 1, Layouts{});
  problem.b = MakeLayout(kS8, Order::kRowMajor, 1, n, Layouts{});
  problem.c = MakeLayout(kF32, Order::kRowMajor, m, n, layouts);
  problem.d = MakeLayout(d, d_order, m, n, layouts);
  problem.accumulation = accumulation;
  return problem;
}

// Numbers of the size of C's, and sometimes special ones. Processors agree on the bits of the f32
// NaN that the tensor core produces.
double DrawAccumulator(ElementType type, RandomSource& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecials[] = {0.0,        -0.0,   kInfinity,
                                  -kInfinity, 1e-320, 0x1p-140,
                                  3e38,       1e300,  std::numeric_limits<double>::quiet_NaN()};
  if (type == kS32) {
    return random.Between(0, 9) == 0 ? Decode(kS32, random.Bits())
                                     : static_cast<double>(random.Between(-300, 300));
  }
  if (random.Between(0, 19) == 0) return kSpecials[random.Between(0, 8)];
  return random.AnyMagnitude(-8, 6);
}

TileEpilogueCase FillTileEpilogueCase(const Problem& problem, RandomSource& random) {
  TileEpilogueCase test;
  test.product = FillCase(problem, Pattern::kRandom, random);
  test.type = problem.accumulation;
  std::vector<double> values(static_cast<size_t>(problem.m * problem.n * problem.batch));
  for (double& value : values) value = DrawAccumulator(test.type, random);
  const auto count = static_cast<int64_t>(values.size());
  test.accumulators.resize(values.size() * static_cast<size_t>(BitsOf(test.type) / 8));
  EncodeLine(test.type, values.data(), count, test.accumulators.data());
  return test;
}

// The accumulators of one matrix in D's order.
std::vector<std::byte> InOrderOfD(const TileEpilogueCase& test, int64_t index) {
  const Problem& problem = test.product.problem;
  const int64_t bytes = BitsOf(test.type) / 8;
  const std::byte* source = test.accumulators.data() + index * problem.m * problem.n * bytes;
  std::vector<std::byte> target(static_cast<size_t>(problem.m * problem.n * bytes));
  const bool is_row_major = problem.d.order == Order::kRowMajor;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      const int64_t at = is_row_major ? i * problem.n + j : j * problem.m + i;
      std::copy_n(source + (i * problem.n + j) * bytes, bytes, target.begin() + at * bytes);
    }
  }
  return target;
}

std::vector<std::byte> Want(const TileEpilogueCase& test) {
  const Product& product = test.product;
  const Problem& problem = product.problem;
  const int64_t bytes = BytesOf("d", problem.d, problem.batch)->least;
  std::vector<std::byte> d(static_cast<size_t>(bytes + 2 * kGuardBytes), std::byte{0xff});
  const GemmArgs args = EpilogueArgs(product, d.data() + kGuardBytes);
  for (int64_t index = 0; index < problem.batch; ++index) {
    const std::vector<std::byte> matrix = InOrderOfD(test, index);
    ApplyEpilogue(args, index,
                  {.data = problem.has_product() ? matrix.data() : nullptr,
                   .stored = test.type,
                   .leading_dimension = problem.d.line_length(),
                   .type = test.type});
  }
  return d;
}

void Check(const EpilogueRunner& run, const Problem& problem, RandomSource& random) {
  const TileEpilogueCase test = FillTileEpilogueCase(problem, random);
  const std::vector<std::byte> got = run(test);
  const std::vector<std::byte> want = Want(test);
  ASSERT_EQ(got.size(), want.size());
  const auto [at, expected] = std::mismatch(got.begin(), got.end(), want.begin());
  const int64_t offset = at - got.begin() - kGuardBytes;
  ASSERT_TRUE(at == got.end()) << "byte " << offset << " of D: got " << static_cast<int>(*at)
                               << ", want " << static_cast<int>(*expected) << "; "
                               << DescribeCase(problem, Pattern::kRandom) << ", C "
                               << std::string(NameOf(problem.c.type)) << ", accumulators "
                               << std::string(NameOf(test.type)) << ", " << random.trace();
}

}  // namespace

void CheckEveryTypeOfCAndD(const EpilogueRunner& run, RandomSource& random) {
  for (ElementType accumulation : kAccumulators) {
    for (ElementType d : kAllElementTypes) {
      for (ElementType c : kAllElementTypes) {
        if (c == kB1 || d == kB1) continue;
        for (Order d_order : kOrders) {
          for (Order c_order : kOrders) {
            Problem problem = MakeEpilogueProblem(19, 45, 2, d, d_order, accumulation);
            problem.beta = 0.7;
            problem.c = MakeLayout(c, c_order, 19, 45, {.padding = 5, .batch_gap = 3});
            Check(run, problem, random);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

void CheckEveryOption(const EpilogueRunner& run, RandomSource& random) {
  constexpr ScaleKind kScales[] = {ScaleKind::kNone, ScaleKind::kTensor, ScaleKind::kVector};
  constexpr BiasAxis kAxes[] = {BiasAxis::kNone, BiasAxis::kRows, BiasAxis::kColumns};
  for (ElementType accumulation : kAccumulators) {
    for (ElementType bias : kAllElementTypes) {
      if (bias == kB1) continue;
      for (int turn = 0; turn < 54; ++turn) {
        Problem problem = MakeEpilogueProblem(35, 41, 1, random.Flip() ? kF32 : kBf16,
                                              kOrders[turn % 2], accumulation);
        problem.alpha = random.Flip() ? 0.3 : 1;
        problem.beta = random.Flip() ? -1.7 : 0;
        problem.bias_type = bias;
        problem.bias_axis = kAxes[turn / 2 % 3];
        problem.a_scale = kScales[turn / 6 % 3];
        problem.b_scale = kScales[turn / 18 % 3];
        Check(run, problem, random);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

void CheckEveryActivation(const EpilogueRunner& run, RandomSource& random) {
  for (ElementType accumulation : kAccumulators) {
    for (Activation activation :
         {Activation::kRelu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu}) {
      for (ElementType d : {kF64, kF32, kF16}) {
        Problem problem = MakeEpilogueProblem(100, 200, 1, d, Order::kRowMajor, accumulation);
        problem.activation = activation;
        problem.alpha = accumulation == kS32 ? 0.01 : 0.5;
        Check(run, problem, random);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

void CheckOddShapes(const EpilogueRunner& run, RandomSource& random) {
  for (Order order : kOrders) {
    for (ElementType d : {kF32, kBf16, kE4m3, kE3m2, kS4}) {
      for (int64_t m : {1, 7, 65}) {
        for (int64_t n : {1, 15, 16, 17, 63, 64, 65, 130}) {
          Problem problem = MakeEpilogueProblem(m, n, 3, d, order, kF32);
          problem.bias_axis = BiasAxis::kRows;
          Check(run, problem, random);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Covers the cases of StoreDirectly and those next to them, on lines that are aligned to pairs and
// on lines that are not.
void CheckPlain(const EpilogueRunner& run, RandomSource& random) {
  for (ElementType accumulation : kAccumulators) {
    for (ElementType d : kAllElementTypes) {
      if (d == kB1) continue;
      for (Order order : kOrders) {
        for (double alpha : {1.0, -0.37}) {
          for (int64_t padding : {0, 1, 8}) {
            for (int64_t n : {31, 64}) {
              Problem problem = MakeEpilogueProblem(37, n, 2, d, order, accumulation);
              problem.alpha = alpha;
              problem.d = MakeLayout(d, order, 37, n, {.padding = padding});
              Check(run, problem, random);
              if (testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

void CheckWithoutProduct(const EpilogueRunner& run, RandomSource& random) {
  for (ElementType accumulation : kAccumulators) {
    for (Order order : kOrders) {
      for (double beta : {0.0, 2.5}) {
        for (ElementType d : {kF32, kE2m1}) {
          Problem problem = MakeEpilogueProblem(21, 700, 2, d, order, accumulation);
          if (random.Flip()) {
            problem.k = 0;
          } else {
            problem.alpha = 0;
          }
          problem.beta = beta;
          problem.a_scale = ScaleKind::kVector;
          problem.bias_axis = BiasAxis::kColumns;
          problem.activation = Activation::kSilu;
          Check(run, problem, random);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace gemmd
