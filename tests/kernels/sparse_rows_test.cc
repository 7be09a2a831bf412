// SPDX-License-Identifier: Apache-2.0
//
// Every row of the CPU whose A has a sparse form: the product of a sparse A is that of the dense
// matrix that it represents, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

class SparseRowTest : public testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    SetThreads(1);
    const absl::Status available = kernel_.available(HostTarget());
    if (!available.ok()) GTEST_SKIP() << available.message();
  }

  void ExpectSameBits(const Problem& problem, Pattern pattern) {
    SCOPED_TRACE(DescribeCase(problem, pattern));
    Product dense = FillCase(problem, pattern, random_);
    const Product sparse = WithSparseA(dense);
    const absl::StatusOr<std::vector<std::byte>> want = RunKernel(kernel_, dense, HostTarget());
    const absl::StatusOr<std::vector<std::byte>> got = RunKernel(kernel_, sparse, HostTarget());
    ASSERT_THAT(want, IsOk());
    ASSERT_THAT(got, IsOk());
    EXPECT_EQ(*got, *want);
  }

  const Kernel& kernel_ = GetParam();
  RandomSource random_;
};

TEST_P(SparseRowTest, EveryDepth) {
  SCOPED_TRACE(random_.trace());
  for (int64_t k = 0; k <= 25; ++k) {
    for (Order order : {Order::kRowMajor, Order::kColumnMajor}) {
      Layouts layouts;
      layouts.b = order;
      layouts.d = k % 2 == 0 ? order : Order::kRowMajor;
      const Pattern pattern = k % 3 == 0 ? Pattern::kSpecials : Pattern::kRandom;
      ExpectSameBits(MakeProblem(kernel_, 7, 5, k, layouts), pattern);
      if (HasFailure()) return;
    }
  }
}

TEST_P(SparseRowTest, Shapes) {
  SCOPED_TRACE(random_.trace());
  for (int64_t m : {0, 1, 17, 35}) {
    for (int64_t n : {0, 1, 16, 33}) {
      ExpectSameBits(MakeProblem(kernel_, m, n, 37, Layouts{}), Pattern::kRandom);
    }
  }
}

TEST_P(SparseRowTest, Batches) {
  SCOPED_TRACE(random_.trace());
  for (bool broadcasts : {false, true}) {
    for (int64_t batch : {0, 1, 4}) {
      Layouts layouts;
      layouts.batch = batch;
      layouts.broadcasts_a = broadcasts;
      layouts.d = broadcasts ? Order::kColumnMajor : Order::kRowMajor;
      ExpectSameBits(MakeProblem(kernel_, 15, 17, 13, layouts), Pattern::kRandom);
    }
  }
}

TEST_P(SparseRowTest, Epilogue) {
  SCOPED_TRACE(random_.trace());
  Problem problem = MakeProblem(kernel_, 9, 6, 22, Layouts{});
  problem.alpha = 0.37;
  problem.beta = -1.25;
  problem.bias_axis = BiasAxis::kRows;
  problem.activation = Activation::kSilu;
  if (BitsOf(kernel_.a) == 8 && BitsOf(kernel_.b) == 8) problem.a_scale = ScaleKind::kVector;
  ExpectSameBits(problem, Pattern::kRandom);
  problem.alpha = 0;
  ExpectSameBits(problem, Pattern::kRandom);
}

TEST_P(SparseRowTest, RefusesWhatItRefusesOfDenseOnes) {
  Problem problem = MakeProblem(kernel_, 4, 4, 8, Layouts{});
  problem.b.type = ElementType::kF64;
  const absl::Status dense = kernel_.supports(problem);
  problem.a = TightSparseLayout("a", kernel_.a, 4, 8).value();
  EXPECT_FALSE(dense.ok());
  EXPECT_EQ(kernel_.supports(problem), dense);
}

std::vector<Kernel> RowsOfSparseTypes() {
  std::vector<Kernel> rows;
  for (const Kernel& kernel : Catalog()) {
    if (kernel.device_kind == DeviceKind::kCpu && SparseFormOf(kernel.a)) rows.push_back(kernel);
  }
  return rows;
}

std::string NameOfRow(const testing::TestParamInfo<Kernel>& row) {
  std::string name(row.param.name);
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Catalog, SparseRowTest, testing::ValuesIn(RowsOfSparseTypes()), NameOfRow);

class LargeSparseRowTest : public SparseRowTest {
 protected:
  void ExpectLargeSameBits() {
    SCOPED_TRACE(random_.trace());
    ExpectSameBits(MakeProblem(kernel_, 193, 97, 401, Layouts{}), Pattern::kRandom);
  }
};

// The first row of each engine.
std::vector<Kernel> OneOfEachEngine() {
  std::vector<Kernel> rows;
  for (const Kernel& kernel : RowsOfSparseTypes()) {
    const bool is_known = std::any_of(
        rows.begin(), rows.end(), [&](const Kernel& row) { return row.engine == kernel.engine; });
    if (!is_known) rows.push_back(kernel);
  }
  return rows;
}

TEST_P(LargeSparseRowTest, HasTheSameBits) { ExpectLargeSameBits(); }
INSTANTIATE_TEST_SUITE_P(Catalog, LargeSparseRowTest, testing::ValuesIn(OneOfEachEngine()),
                         NameOfRow);

class LargeSparseRowExhaustive : public LargeSparseRowTest {};
TEST_P(LargeSparseRowExhaustive, HasTheSameBits) { ExpectLargeSameBits(); }
INSTANTIATE_TEST_SUITE_P(Catalog, LargeSparseRowExhaustive, testing::ValuesIn(RowsOfSparseTypes()),
                         NameOfRow);

}  // namespace
}  // namespace gemmd
