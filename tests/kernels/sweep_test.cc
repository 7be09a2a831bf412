// SPDX-License-Identifier: Apache-2.0
//
// The libraries of the CPU at every depth up to 130, with what may be left over at the ends of m
// and n, on one, few and many threads. Their code is generated for shapes, and a mistake can be in
// a single residue of one extent: oneDNN 2.6.3 with AMX was wrong for k = 63 only where m and n had
// rests, on more than one thread.
//
// Operands are small whole numbers, so that every order of additions gives the same bits. In every
// other product of floats one element of the last of A's depths is infinite, which must not show in
// any other row of D. DNNL_MAX_CPU_ISA has oneDNN take the code for another processor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/text.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_source.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

// A row of every engine and pair of its types, in place and widened.
constexpr std::string_view kRows[] = {"onednn.f32.bf16.bf16",
                                      "onednn.f32.e4m3.e4m3.via_bf16",
                                      "onednn.f32.e5m2.e2m1.via_bf16",
                                      "onednn.f32.f32.f32",
                                      "onednn.f32.f16.f16.via_f32",
                                      "onednn.s32.s8.s8",
                                      "onednn.s32.u8.s8",
                                      "onednn.s32.s8.u8",
                                      "onednn.s32.u8.u8",
                                      "onednn.s32.s4.u4.via_s8",
                                      "openblas.f32.f32.f32",
                                      "openblas.f64.f64.f64",
                                      "openblas.s32.s8.u8.via_f64"};

constexpr int64_t kDeepest = 130;
constexpr int kThreads[] = {1, 2, 16};
// One less and one more than the sizes of vectors, tiles and blocks, and whole multiples of all of
// them.
constexpr int64_t kExtents[] = {1, 2, 15, 17, 31, 33, 48, 63, 64, 65, 129};

bool HasInfinity(ElementType type) {
  return IsFloat(type) && std::isinf(Decode(type, Encode(type, HUGE_VAL)));
}

class SweepTest : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    const absl::Status available = kernel_.available(HostTarget());
    if (!available.ok()) GTEST_SKIP() << available.message();
  }

  Problem DrawProblem(int64_t m, int64_t n, int64_t k) {
    Layouts layouts;
    layouts.b = kOrders[random_.Between(0, 1)];
    layouts.d = kOrders[random_.Between(0, 1)];
    is_sparse_ = SparseFormOf(kernel_.a).has_value() && random_.Between(0, 3) == 0;
    if (!is_sparse_) {
      layouts.a = kOrders[random_.Between(0, 1)];
      layouts.padding = random_.Between(0, 3) == 0 ? 3 : 0;
    }
    return MakeProblem(kernel_, m, n, k, layouts);
  }

  void PutInfinity(Product& product) {
    const MatrixLayout& a = product.problem.a;
    const int64_t row = random_.Between(0, product.problem.m - 1);
    const int64_t column = product.problem.k - 1;
    const bool is_row_major = a.order == Order::kRowMajor;
    std::byte* const line =
        product.a.data() + (is_row_major ? row : column) * a.line_stride_bytes();
    StoreBits(a.type, line, is_row_major ? column : row, Encode(a.type, HUGE_VAL));
  }

  static std::vector<double> Decoded(const MatrixLayout& layout,
                                     const std::vector<std::byte>& bytes) {
    const MatrixView view = {layout, 1, bytes.data()};
    std::vector<double> values;
    values.reserve(static_cast<size_t>(layout.rows * layout.columns));
    ForEachElement(view, [&](int64_t matrix, int64_t row, int64_t column) {
      values.push_back(view.value(matrix, row, column));
    });
    return values;
  }

  // `dense` is the product with A as a dense matrix.
  static testing::AssertionResult IsExact(const Product& dense, const std::vector<std::byte>& d) {
    const Problem& problem = dense.problem;
    const std::vector<double> a = Decoded(problem.a, dense.a);
    const std::vector<double> b = Decoded(problem.b, dense.b);
    const std::vector<double> got = Decoded(problem.d, d);
    std::vector<double> line(static_cast<size_t>(problem.n));
    for (int64_t i = 0; i < problem.m; ++i) {
      std::fill(line.begin(), line.end(), 0);
      for (int64_t l = 0; l < problem.k; ++l) {
        const double x = a[static_cast<size_t>(i * problem.k + l)];
        const double* const y = b.data() + l * problem.n;
        for (size_t j = 0; j < line.size(); ++j) line[j] += x * y[j];
      }
      for (size_t j = 0; j < line.size(); ++j) {
        const double value = got[static_cast<size_t>(i) * line.size() + j];
        if (value == line[j] || (std::isnan(value) && std::isnan(line[j]))) continue;
        return testing::AssertionFailure()
               << "row " << i << ", column " << j << ": " << value << ", want " << line[j];
      }
    }
    return testing::AssertionSuccess();
  }

  void ExpectExact(int64_t m, int64_t n, int64_t k, int threads) {
    SetThreads(threads);
    Product dense = FillCase(DrawProblem(m, n, k), Pattern::kRamps, random_);
    SCOPED_TRACE(Concat(DescribeCase(dense.problem, Pattern::kRamps), ", ", threads, " threads, A ",
                        is_sparse_ ? "sparse" : "dense"));
    if (HasInfinity(kernel_.a) && random_.Flip()) PutInfinity(dense);
    const Product product = is_sparse_ ? WithSparseA(dense) : dense;
    const absl::StatusOr<std::vector<std::byte>> d = RunKernel(kernel_, product, HostTarget());
    ASSERT_THAT(d, IsOk());
    ASSERT_TRUE(PaddingIsUntouched(dense.problem, *d));
    ASSERT_TRUE(IsExact(dense, *d));
  }

  const Kernel& kernel_ = *FindKernel(GetParam()).value();
  RandomSource random_;
  bool is_sparse_ = false;
};

TEST_P(SweepTest, EveryDepth) {
  SCOPED_TRACE(random_.trace());
  const auto draw = [this] {
    return kExtents[random_.Between(0, static_cast<int64_t>(std::size(kExtents)) - 1)];
  };
  for (int64_t k = 1; k <= kDeepest; ++k) {
    for (const int threads : kThreads) {
      if (kIsSanitized && threads != 2) continue;
      ExpectExact(draw(), draw(), k, threads);
      if (HasFatalFailure()) return;
    }
  }
}

// The shapes that were once wrong.
TEST_P(SweepTest, DepthsOfWholeTilesLessOne) {
  for (const int64_t k : {31, 63, 95, 127}) {
    for (const int threads : kThreads) {
      for (const int64_t m : {33, 65, 129}) {
        ExpectExact(m, 65, k, threads);
        if (HasFatalFailure()) return;
      }
    }
  }
}

class SweepExhaustive : public SweepTest {};

TEST_P(SweepExhaustive, EveryDepthAndRest) {
  SCOPED_TRACE(random_.trace());
  for (int64_t k = 1; k <= kDeepest; ++k) {
    for (const int64_t m : kExtents) {
      for (const int64_t n : kExtents) {
        for (const int threads : kThreads) {
          ExpectExact(m, n, k, threads);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

std::string PrintName(const testing::TestParamInfo<std::string_view>& row) {
  std::string name(row.param);
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, SweepTest, testing::ValuesIn(kRows), PrintName);
INSTANTIATE_TEST_SUITE_P(Rows, SweepExhaustive, testing::ValuesIn(kRows), PrintName);

}  // namespace
}  // namespace gemmd
