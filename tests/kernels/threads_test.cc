// SPDX-License-Identifier: Apache-2.0
//
// Launches on several threads, and several launches at once. Not for ThreadSanitizer, which does
// not know the libraries' OpenMP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "tests/kernels/product_case.h"
#include "tests/kernels/reference.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

// A row of every engine, in place and widened.
constexpr std::string_view kRows[] = {"onednn.f32.f32.f32",         "openblas.f32.f32.f32",
                                      "openblas.f64.f64.f64",       "onednn.f32.bf16.bf16",
                                      "onednn.s32.s8.s8",           "onednn.s32.u8.u8",
                                      "onednn.f32.f16.f16.via_f32", "onednn.f32.e4m3.e5m2.via_bf16",
                                      "onednn.s32.b1.b1.via_s8",    "openblas.s32.s8.u8.via_f64"};

class ThreadsTest : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    SetThreads(3);
    const absl::Status available = kernel_.available(HostTarget());
    if (!available.ok()) GTEST_SKIP() << available.message();
  }

  void ExpectCorrect(const Problem& problem) {
    SCOPED_TRACE(DescribeCase(problem, Pattern::kRandom));
    const Product product = FillCase(problem, Pattern::kRandom, random_);
    EXPECT_TRUE(IsCorrect(product));
  }

  testing::AssertionResult IsCorrect(const Product& product) const {
    const absl::StatusOr<std::vector<std::byte>> d = RunKernel(kernel_, product, HostTarget());
    if (!d.ok()) return testing::AssertionFailure() << d.status();
    const Reference reference = MakeReference(product, kernel_.recipe);
    return WithinBound({product.problem.d, product.problem.batch, d->data()}, reference.want,
                       reference.bound);
  }

  const Kernel& kernel_ = *FindKernel(GetParam()).value();
  RandomSource random_;
};

TEST_P(ThreadsTest, LargeProducts) {
  SCOPED_TRACE(random_.trace());
  for (Order order : {Order::kRowMajor, Order::kColumnMajor}) {
    ExpectCorrect(MakeProblem(kernel_, 301, 257, 150, Layouts{.b = order, .d = order}));
    ExpectCorrect(MakeProblem(kernel_, 2, 701, 1501, Layouts{.a = order, .padding = 1}));
    ExpectCorrect(MakeProblem(kernel_, 9, 3, 40001, Layouts{}));
  }
}

// Lines of one element make the product long, so that it is computed in panels; k is odd.
TEST_P(ThreadsTest, ProductsInPanels) {
  SCOPED_TRACE(random_.trace());
  ExpectCorrect(MakeProblem(kernel_, 1, 1, 820'001, Layouts{}));
}

TEST_P(ThreadsTest, LargeEpilogues) {
  SCOPED_TRACE(random_.trace());
  Problem problem = MakeProblem(kernel_, 403, 517, 11, Layouts{.c = Order::kColumnMajor});
  problem.alpha = 0.5;
  problem.beta = 2;
  problem.activation = Activation::kRelu;
  ExpectCorrect(problem);
}

TEST_P(ThreadsTest, BatchesOfSmallProducts) {
  SCOPED_TRACE(random_.trace());
  ExpectCorrect(MakeProblem(kernel_, 31, 17, 29, Layouts{.batch = 101}));
}

TEST_P(ThreadsTest, RepeatsItsBitsOnAsManyThreads) {
  const Product product =
      FillCase(MakeProblem(kernel_, 301, 257, 150, Layouts{}), Pattern::kRandom, random_);
  const absl::StatusOr<std::vector<std::byte>> first = RunKernel(kernel_, product, HostTarget());
  ASSERT_THAT(first, IsOk());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(*RunKernel(kernel_, product, HostTarget()), *first);
}

// Each launch has its own threads, in different numbers.
TEST_P(ThreadsTest, LaunchesAtOnce) {
  SCOPED_TRACE(random_.trace());
  constexpr int kLaunchers = 4;
  constexpr int kLaunches = 6;
  std::vector<Product> products;
  for (int i = 0; i < kLaunchers; ++i) {
    const Problem problem = MakeProblem(kernel_, 100 + i, 90, 120, Layouts{});
    products.push_back(FillCase(problem, Pattern::kRandom, random_));
  }
  std::vector<std::string> failures(kLaunchers);
  std::vector<std::thread> launchers;
  launchers.reserve(kLaunchers);
  for (int i = 0; i < kLaunchers; ++i) {
    launchers.emplace_back([&, i] {
      SetThreads(1 + i % 3);
      for (int launch = 0; launch < kLaunches; ++launch) {
        const auto index = static_cast<size_t>(i);
        const testing::AssertionResult result = IsCorrect(products[index]);
        if (!result) failures[index] = result.message();
      }
    });
  }
  for (std::thread& launcher : launchers) launcher.join();
  EXPECT_THAT(failures, testing::Each(""));
}

std::string PrintName(const testing::TestParamInfo<std::string_view>& row) {
  std::string name(row.param);
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Rows, ThreadsTest, testing::ValuesIn(kRows), PrintName);

}  // namespace
}  // namespace gemmd
