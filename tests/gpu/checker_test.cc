// SPDX-License-Identifier: Apache-2.0
//
// Tests of the checks themselves: the simulator stands in for the GPU, and every planted fault must
// be found.
#include "tests/gpu/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>

#include "kernels/cuda/rows.h"
#include "kernels/mma/instructions.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/reference.h"
#include "tests/gpu/report.h"
#include "tests/gpu/unnamed.h"
#include "tests/testing/random_source.h"
#include "tests/testing/sanitized.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

constexpr std::string_view kRow = "mma.m16n8k16.f32.f16.f16.f32_64x64x32_w2x2_s3";

const Kernel& RowNamed(std::string_view name) {
  for (const Kernel& kernel : CudaKernels()) {
    if (kernel.name == name) return kernel;
  }
  ADD_FAILURE() << "no row " << std::string(name);
  return CudaKernels()[0];
}

// What is done to an output, or how a launch fails.
using Spoil = std::function<absl::Status(const Kernel&, const Product&, std::vector<std::byte>&)>;

absl::Status SpoilNothing(const Kernel&, const Product&, std::vector<std::byte>&) {
  return absl::OkStatus();
}

class SimulatedGpu : public KernelRunner {
 public:
  SimulatedGpu(Spoil spoil, std::string_view without)
      : spoil_(std::move(spoil)), without_(without) {}

  bool HasCode(const Kernel& kernel) const override { return kernel.name != without_; }

  absl::Status Run(const Kernel& kernel, absl::Span<const Product> products,
                   absl::Span<std::vector<std::byte>> outputs) override {
    for (size_t i = 0; i < products.size(); ++i) {
      const absl::Status status = Simulate(kernel, mma::Chip::kSm90, products[i], outputs[i]);
      if (!status.ok()) return status;
      const absl::Status spoilt = spoil_(kernel, products[i], outputs[i]);
      if (!spoilt.ok()) return spoilt;
    }
    return absl::OkStatus();
  }

 private:
  Spoil spoil_;
  std::string_view without_;
};

CheckResult Check(CheckOptions options, const Spoil& spoil = SpoilNothing,
                  std::string_view without = "") {
  options.threads = 2;
  absl::StatusOr<CheckResult> result = CheckRows(options, [&] {
    return absl::StatusOr<std::unique_ptr<KernelRunner>>(
        std::make_unique<SimulatedGpu>(spoil, without));
  });
  EXPECT_THAT(result, IsOk());
  return result.ok() ? *std::move(result) : CheckResult{};
}

CheckOptions QuickOptions(std::string_view filter) {
  CheckOptions options;
  options.filter = filter;
  options.seeds = {7};
  options.is_quick = true;
  return options;
}

TEST(CasesTest, HaveEveryShapeAboutTheTile) {
  const Kernel& kernel = RowNamed(kRow);
  std::set<std::tuple<int64_t, int64_t, int64_t>> shapes;
  for (const CaseSpec& spec : CasesOf(kernel, 0, false)) {
    if (spec.topic == Topic::kShapes) shapes.insert({spec.m, spec.n, spec.k});
  }
  EXPECT_EQ(shapes.size(), 216);
  for (const int64_t m : {0, 1, 63, 64, 65, 131}) {
    for (const int64_t n : {0, 1, 63, 64, 65, 131}) {
      for (const int64_t k : {0, 1, 31, 32, 33, 67}) EXPECT_TRUE(shapes.contains({m, n, k}));
    }
  }
}

// Every shape in every order, and lines of every spacing; every family, batch and type of D.
TEST(CasesTest, HaveEveryOrderFamilyBatchAndOutput) {
  const Kernel& kernel = RowNamed(kRow);
  std::set<Family> families;
  std::set<std::tuple<int64_t, bool, bool>> batches;
  std::set<std::tuple<ElementType, bool>> outputs;
  std::set<int64_t> leading_dimensions;
  RandomSource random(1);
  for (const CaseSpec& spec : CasesOf(kernel, 0, false)) {
    if (spec.topic == Topic::kFamilies) families.insert(spec.family);
    if (spec.topic == Topic::kBatches) batches.insert({spec.batch, spec.shares_a, spec.shares_b});
    if (spec.topic >= Topic::kOutputs) outputs.insert({spec.d, spec.topic == Topic::kOutputs});
    if (spec.topic != Topic::kShapes || spec.m != 65 || spec.n != 65) continue;
    std::set<std::tuple<Order, Order, Order>> orders;
    for (const Product& product : MakeProducts(kernel, spec, false, random)) {
      const Problem& problem = product.problem;
      orders.insert({problem.a.order, problem.b.order, problem.d.order});
      if (spec.k == 33 && problem.a.order == Order::kRowMajor) {
        leading_dimensions.insert(problem.a.leading_dimension);
      }
    }
    EXPECT_EQ(orders.size(), 8);
  }
  EXPECT_EQ(families.size(), kAllFamilies.size());
  EXPECT_EQ(batches.size(), 12);
  EXPECT_EQ(outputs.size(), 30);
  EXPECT_THAT(leading_dimensions, testing::IsSubsetOf({33, 36, 40}));
  EXPECT_GT(leading_dimensions.size(), 1);
}

// Small and simple products with every kind of operand pass, and products with the same elements
// have the same result.
TEST(CheckerTest, PassesWhatIsRight) {
  for (const std::string_view filter :
       {kRow, std::string_view("mma.sp.m16n8k32.f32.bf16.bf16.f32_64x64x64_w2x2_s3")}) {
    CheckOptions options;
    options.filter = filter;
    options.seeds = {5};
    options.is_quick = kIsSanitized;
    const CheckResult result = Check(options);
    ASSERT_EQ(result.rows.size(), 1) << std::string(filter);
    const RowResult& row = result.rows[0];
    EXPECT_TRUE(result.passed()) << TextOf({}, result);
    if (kIsSanitized) continue;
    // Each of 9 types as B and, if A is dense, as A.
    const int dequantized = filter == kRow ? 18 : 9;
    EXPECT_EQ(row.cases, 216 + 11 + 12 + 1 + 15 + 45 + dequantized);
    EXPECT_GT(row.products, 216 * 4);
    EXPECT_GT(row.elements, 1'000'000);
  }
}

// Checks the rows of the filter on a device that lacks the code of one of them, which no other row
// covers.
CheckResult CheckWithoutOne(std::string_view filter) {
  const std::string_view without = "mma.m16n8k8.f32.f16.f16.f32_64x64x32_w2x2_s3";
  CheckResult result = Check(QuickOptions(filter), SpoilNothing, without);
  EXPECT_FALSE(result.passed());
  EXPECT_GT(result.instructions.size(), 200);
  for (const RowResult& row : result.rows) {
    EXPECT_EQ(row.passed(), row.kernel->name != without) << TextOf({}, result);
  }
  EXPECT_THAT(TextOf({}, result), HasSubstr("FAILED\n"));
  return result;
}

TEST(CheckerTest, CoversTheInstructionsOfItsRows) {
  const CheckResult result = CheckWithoutOne("mma.m16n8k8.*");
  std::set<std::string> tried;
  for (const RowResult& row : result.rows) {
    tried.emplace(mma::NameOf(*row.kernel->instruction).view());
  }
  EXPECT_GT(tried.size(), 4);
  EXPECT_EQ(result.not_covered.size(), result.instructions.size() - tried.size() + 1);
}

// Every instruction of sm_90 is covered, except one whose only row has no code.
TEST(CheckerExhaustive, CoversEveryInstruction) {
  const CheckResult result = CheckWithoutOne("*");
  EXPECT_GE(result.rows.size(), result.instructions.size());
  ASSERT_EQ(result.not_covered.size(), 1);
  EXPECT_EQ(mma::NameOf(*result.not_covered[0]).view(), "mma.m16n8k8.f32.f16.f16.f32");
  EXPECT_THAT(TextOf({}, result), HasSubstr("not covered: mma.m16n8k8.f32.f16.f16.f32\n"));
}

void FlipLastBit(const Product& product, std::vector<std::byte>& output) {
  const MatrixLayout& d = product.problem.d;
  std::byte* last = output.data() + kGuardBytes +
                    (product.problem.batch - 1) * d.batch_stride_bytes +
                    (d.lines() - 1) * d.line_stride_bytes();
  StoreBits(d.type, last, d.line_length() - 1, LoadBits(d.type, last, d.line_length() - 1) ^ 1);
}

// One wrong bit in one element of one of the products.
TEST(CheckerTest, FindsOneWrongElement) {
  if (kIsSanitized) GTEST_SKIP() << "a minute under a sanitizer";
  const Spoil spoil = [](const Kernel&, const Product& product, std::vector<std::byte>& output) {
    const Problem& problem = product.problem;
    const bool is_the_one = problem.m == 65 && problem.n == 1 && problem.k == 67 &&
                            problem.a.order == Order::kColumnMajor &&
                            problem.b.order == Order::kRowMajor &&
                            problem.d.order == Order::kColumnMajor;
    if (is_the_one) FlipLastBit(product, output);
    return absl::OkStatus();
  };
  CheckOptions options;
  options.filter = kRow;
  options.seeds = {5, 6};
  const CheckResult result = Check(options, spoil);
  EXPECT_FALSE(result.passed());
  const RowResult& row = result.rows.at(0);
  EXPECT_EQ(row.mismatches, 2);  // Once for each seed.
  ASSERT_TRUE(row.first);
  EXPECT_EQ(row.first->seed, 5);
  EXPECT_THAT(row.first->what, HasSubstr("1 of 65, first matrix 0, row 64, column 0: got 0x"));
  EXPECT_THAT(row.first->product, HasSubstr("65x1x67 f32 <- f16 column, f16 row, D column"));

  // The report tells how to reproduce it.
  options.seeds = {row.first->seed};
  options.only_case = row.first->case_index;
  const CheckResult again = Check(options, spoil);
  EXPECT_EQ(again.rows.at(0).cases, 1);
  EXPECT_EQ(again.rows.at(0).mismatches, 1);
  EXPECT_EQ(again.rows.at(0).first->what, row.first->what);
}

struct Fault {
  std::string_view name;
  Spoil spoil;
  std::string_view want;
};

// Only where D has bytes to spoil.
Spoil OfOutputs(void (*spoil)(const Product&, std::vector<std::byte>&)) {
  return [=](const Kernel&, const Product& product, std::vector<std::byte>& output) {
    if (product.problem.has_output()) spoil(product, output);
    return absl::OkStatus();
  };
}

TEST(CheckerTest, FindsEveryFault) {
  const std::vector<Fault> faults = {
      {"nothing written", OfOutputs([](const Product& product, std::vector<std::byte>& output) {
         output = PoisonedOutput(product.problem);
       }),
       "matrix 0, row 0, column 0"},
      {"in front of D",
       OfOutputs([](const Product&, std::vector<std::byte>& output) { output[0] = std::byte{0}; }),
       "byte -256 of D"},
      {"behind D", OfOutputs([](const Product&, std::vector<std::byte>& output) {
         output.back() = std::byte{0};
       }),
       "which is no element's"},
      {"a NaN", OfOutputs([](const Product& product, std::vector<std::byte>& output) {
         StoreBits(product.problem.d.type, output.data() + kGuardBytes, 0,
                   Encode(product.problem.d.type, 0.0 / 0.0));
       }),
       "matrix 0, row 0, column 0"},
      {"a launch",
       [](const Kernel&, const Product&, std::vector<std::byte>&) {
         return absl::InternalError("launch: cudaErrorLaunchFailure");
       },
       "cudaErrorLaunchFailure"},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(std::string(fault.name));
    const CheckResult result = Check(QuickOptions(kRow), fault.spoil);
    EXPECT_FALSE(result.passed());
    ASSERT_TRUE(result.rows.at(0).first);
    EXPECT_THAT(result.rows[0].first->what, HasSubstr(std::string(fault.want)));
    EXPECT_THAT(TextOf({}, result), HasSubstr("FAILED\n"));
  }
}

TEST(CheckerTest, EndsWhereTheContextIsLost) {
  const Spoil spoil = [](const Kernel&, const Product&, std::vector<std::byte>&) {
    return absl::AbortedError("the context is lost");
  };
  CheckOptions options;
  options.filter = kRow;
  const CheckResult result = Check(options, spoil);
  EXPECT_FALSE(result.passed());
  EXPECT_TRUE(result.is_aborted);
  EXPECT_LE(result.rows.at(0).errors, 2);  // One for each thread.
  EXPECT_GT(result.cases_left, 200);
}

TEST(CheckerTest, IsNotPassedWithoutCode) {
  const CheckResult result = Check(QuickOptions(kRow), SpoilNothing, kRow);
  EXPECT_FALSE(result.passed());
  EXPECT_THAT(TextOf({}, result), HasSubstr("no code in this build"));
}

TEST(CheckerTest, RefusesAFilterOfNothing) {
  const absl::StatusOr<CheckResult> result = CheckRows(QuickOptions("onednn*"), [] {
    return absl::StatusOr<std::unique_ptr<KernelRunner>>(absl::InternalError("not reached"));
  });
  EXPECT_TRUE(absl::IsNotFound(result.status()));
}

TEST(CheckerTest, SaysWhyNothingRuns) {
  const absl::StatusOr<CheckResult> result = CheckRows(QuickOptions(kRow), [] {
    return absl::StatusOr<std::unique_ptr<KernelRunner>>(absl::ResourceExhaustedError("memory"));
  });
  EXPECT_TRUE(absl::IsResourceExhausted(result.status()));
}

TEST(ReportTest, HoldsAllFigures) {
  const CheckResult result = Check(QuickOptions(kRow), [](const Kernel&, const Product& product,
                                                          std::vector<std::byte>& output) {
    if (product.problem.m == 64) FlipLastBit(product, output);
    return absl::OkStatus();
  });
  const GpuFacts gpu = {"A GPU", "sm_90", "580.1", "13.0", "abc"};
  const nlohmann::json report = nlohmann::json::parse(JsonOf(gpu, result));
  EXPECT_EQ(report["gpu"], "A GPU");
  EXPECT_EQ(report["chip"], "sm_90");
  EXPECT_EQ(report["commit"], "abc");
  EXPECT_EQ(report["passed"], false);
  EXPECT_EQ(report["rows"], 1);
  EXPECT_EQ(report["mismatches"], 2);
  const nlohmann::json& kernel = report["kernels"][0];
  EXPECT_EQ(kernel["kernel"], std::string(kRow));
  EXPECT_EQ(kernel["cases"], 7);
  EXPECT_EQ(kernel["products"], 14);
  EXPECT_EQ(kernel["mismatches"], 2);
  EXPECT_EQ(kernel["first"]["case"], 1);
  EXPECT_THAT(std::string(kernel["first"]["product"]), HasSubstr("64x64x32"));
}

// Chooses kernels for the GPU and for the simulator at any rates; here the GPU is a simulator too.
TEST(UnnamedTest, GivesTheSameBitsWhateverIsChosen) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  SimulatedGpu gpu(SpoilNothing, "");
  const absl::StatusOr<UnnamedResult> result =
      CheckUnnamed(gpu, mma::Chip::kSm90, 60, random.Bits());
  ASSERT_THAT(result, IsOk());
  EXPECT_GE(result->products, 60);
  EXPECT_GT(result->kernels, 20);
  EXPECT_EQ(result->mismatches, 0) << result->first;
}

TEST(UnnamedTest, SeesAWrongBit) {
  SimulatedGpu gpu(
      [](const Kernel&, const Product& product, std::vector<std::byte>& output) {
        if (product.problem.has_output()) output[kGuardBytes] ^= std::byte{1};
        return absl::OkStatus();
      },
      "");
  const absl::StatusOr<UnnamedResult> result = CheckUnnamed(gpu, mma::Chip::kSm90, 5, 1);
  ASSERT_THAT(result, IsOk());
  EXPECT_GT(result->mismatches, 0);
  EXPECT_FALSE(result->first.empty());
}

}  // namespace
}  // namespace gemmd
