// SPDX-License-Identifier: Apache-2.0
//
// Every row of the CPU gives the same bits whether it derives the form of an operand in its
// workspace, derives it in memory that is kept, or finds it there, made by an earlier launch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using mma::Operand;

// Memory at a multiple of 64 bytes, with all bits set.
class Lines {
 public:
  explicit Lines(int64_t bytes) : lines_(static_cast<size_t>((bytes + 63) / 64)) {
    std::fill_n(data(), lines_.size() * sizeof(Line), std::byte{0xff});
  }
  std::byte* data() { return lines_.empty() ? nullptr : lines_.data()->bytes.data(); }

 private:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  std::vector<Line> lines_;
};

class FormsTest : public testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    SetThreads(1);
    const absl::Status available = kernel_.available(HostTarget());
    if (!available.ok()) GTEST_SKIP() << available.message();
  }

  absl::StatusOr<std::vector<std::byte>> Run(const Product& product, const OperandForm& a,
                                             const OperandForm& b) {
    const int64_t bytes = kernel_.workspace_bytes(product.problem).value();
    Lines workspace(bytes);
    std::vector<std::byte> d(
        static_cast<size_t>(BytesOf("d", product.problem.d, product.problem.batch).value().least),
        std::byte{0xff});
    const absl::Status status =
        kernel_.launch({.problem = product.problem,
                        .target = HostTarget(),
                        .a = product.a.data(),
                        .b = product.b.data(),
                        .c = product.c.data(),
                        .bias = product.bias.data(),
                        .a_scale = product.a_scale,
                        .b_scale = product.b_scale,
                        .d = d.data(),
                        .workspace = {workspace.data(), static_cast<size_t>(bytes)},
                        .a_form = a,
                        .b_form = b,
                        .a_factors = product.a_factors.data(),
                        .b_factors = product.b_factors.data()});
    if (!status.ok()) return status;
    return d;
  }

  // If the operand has a form, a launch that finds it made does not read the operand.
  void ExpectSameBits(const Product& product, Operand operand) {
    const bool is_a = operand == Operand::kA;
    const absl::StatusOr<DerivedOperand> derived = kernel_.derived(product.problem, operand);
    ASSERT_THAT(derived, IsOk());
    if (derived->bytes == 0) return;
    ++forms_;
    const absl::StatusOr<std::vector<std::byte>> want = Run(product, {}, {});
    ASSERT_THAT(want, IsOk());
    Lines memory(derived->bytes);
    OperandForm form = {memory.data(), false};
    const auto run = [&](const Product& given) {
      return is_a ? Run(given, form, {}) : Run(given, {}, form);
    };
    const absl::StatusOr<std::vector<std::byte>> making = run(product);
    ASSERT_THAT(making, IsOk());
    EXPECT_EQ(*making, *want);
    Product spoiled = product;
    std::vector<std::byte>& bytes = is_a ? spoiled.a : spoiled.b;
    std::fill(bytes.begin(), bytes.end(), std::byte{0x55});
    form.is_made = true;
    const absl::StatusOr<std::vector<std::byte>> made = run(spoiled);
    ASSERT_THAT(made, IsOk());
    EXPECT_EQ(*made, *want);
    CompareWithTheSameForm(product, operand, *derived, memory);
  }

  // One number, one form: whatever else differs between two problems.
  void CompareWithTheSameForm(const Product& product, Operand operand,
                              const DerivedOperand& derived, Lines& memory) {
    const std::vector<std::byte> form(memory.data(), memory.data() + derived.bytes);
    const auto [seen, is_new] = seen_.insert({{derived.form, operand}, {product, form}});
    if (is_new) return;
    const Product& other = seen->second.first;
    const bool is_a = operand == Operand::kA;
    const bool is_same = is_a ? other.a == product.a && other.problem.a == product.problem.a
                              : other.b == product.b && other.problem.b == product.problem.b;
    if (is_same) {
      EXPECT_EQ(seen->second.second, form);
    }
  }

  void ExpectSameBits(const Problem& problem) {
    SCOPED_TRACE(DescribeCase(problem, Pattern::kRandom));
    const Product product = FillCase(problem, Pattern::kRandom, random_);
    ExpectSameBits(product, Operand::kA);
    ExpectSameBits(product, Operand::kB);
  }

  bool ConvertsSomething() const {
    return kernel_.recipe.a_compute != kernel_.a || kernel_.recipe.b_compute != kernel_.b;
  }

  const Kernel& kernel_ = GetParam();
  RandomSource random_;
  int forms_ = 0;
  std::map<std::pair<uint32_t, Operand>, std::pair<Product, std::vector<std::byte>>> seen_;
};

TEST_P(FormsTest, EveryOrderAndDepth) {
  SCOPED_TRACE(random_.trace());
  for (const Order b : {Order::kRowMajor, Order::kColumnMajor}) {
    for (const Order d : {Order::kRowMajor, Order::kColumnMajor}) {
      for (const int64_t k : {1, 16, 33}) {
        for (const int64_t padding : {0, 8}) {
          Layouts layouts;
          layouts.b = b;
          layouts.d = d;
          layouts.padding = padding;
          ExpectSameBits(MakeProblem(kernel_, 9, 21, k, layouts));
        }
      }
    }
  }
  if (ConvertsSomething()) {
    EXPECT_GT(forms_, 0);
  }
}

TEST_P(FormsTest, OneMatrixForABatch) {
  SCOPED_TRACE(random_.trace());
  Layouts layouts;
  layouts.batch = 3;
  layouts.broadcasts_b = true;
  const Problem problem = MakeProblem(kernel_, 5, 12, 17, layouts);
  ExpectSameBits(problem);
  EXPECT_EQ(kernel_.derived(problem, Operand::kA)->bytes, 0) << "of which there are three";
}

TEST_P(FormsTest, SparseA) {
  if (!SparseFormOf(kernel_.a)) GTEST_SKIP() << "no sparse form";
  for (const int64_t k : {16, 31}) {
    Product product = FillCase(MakeProblem(kernel_, 6, 10, k, {}), Pattern::kRandom, random_);
    const SparseLayout layout = SparseLayoutOf("a", kernel_.a, 6, k).value();
    PruneByMagnitude(layout, product.a.data());
    std::vector<std::byte> compressed(static_cast<size_t>(layout.bytes));
    ASSERT_THAT(Compress("a", layout, product.a.data(), compressed.data()), IsOk());
    product.a = compressed;
    product.problem.a = TightSparseLayout("a", kernel_.a, 6, k).value();
    const int before = forms_;
    ExpectSameBits(product, Operand::kA);
    EXPECT_GT(forms_, before);
  }
}

TEST_P(FormsTest, NothingIsDerivedOfNoProduct) {
  Problem problem = MakeProblem(kernel_, 4, 4, 4, {});
  problem.alpha = 0;
  EXPECT_EQ(kernel_.derived(problem, Operand::kB)->bytes, 0);
  EXPECT_EQ(kernel_.derived(MakeProblem(kernel_, 0, 4, 4, {}), Operand::kB)->bytes, 0);
}

std::vector<Kernel> Rows() {
  const absl::Span<const Kernel> rows = Catalog(DeviceKind::kCpu);
  return {rows.begin(), rows.end()};
}

INSTANTIATE_TEST_SUITE_P(Cpu, FormsTest, testing::ValuesIn(Rows()), [](const auto& param_info) {
  std::string name(param_info.param.name);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

}  // namespace
}  // namespace gemmd
