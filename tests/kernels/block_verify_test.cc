// SPDX-License-Identifier: Apache-2.0
//
// Checks of products with block factors: right products pass, and one wrong bit is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/verify/checksum.h"
#include "kernels/verify/sampled.h"
#include "tests/kernels/verify_figures.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using verify::CheckEnd;

struct Case {
  std::string_view kernel;
  FactorType type;
  int64_t depth;
};
constexpr Case kCases[] = {
    {"gemmd.f32.e4m3.e4m3.blocks", FactorType::kF32, 24},
    {"gemmd.f32.e2m1.e5m2.blocks", FactorType::kUe4m3, 16},
    {"mma.m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0",
     FactorType::kUe8m0, 32},
    {"mma.m16n8k64.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3",
     FactorType::kUe4m3, 16},
};

Product ScaledProduct(const Kernel& kernel, const Case& c, RandomSource& random) {
  Layouts layouts;
  layouts.batch = 2;
  layouts.b = Order::kColumnMajor;
  Problem problem = MakeProblem(kernel, 33, 21, 100, layouts);
  problem.a_scale = problem.b_scale = ScaleKind::kBlocks;
  problem.a_blocks = {.type = c.type, .lines = 1, .depth = c.depth, .per_matrix = true};
  problem.b_blocks = {.type = c.type, .lines = 4, .depth = c.depth};
  return FillCase(problem, Pattern::kRandom, random);
}

TEST(BlockVerifyTest, SamplesPassWhatIsRightAndFindEachWrongBit) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  verify::Draw draw(random.Bits());
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.kernel));
    const Kernel& kernel = KernelNamed(c.kernel);
    const Target target = {.kind = kernel.device_kind, .chip = mma::Chip::kSm120};
    const Product product = ScaledProduct(kernel, c, random);
    const absl::StatusOr<std::vector<std::byte>> d = RunKernel(kernel, product, target);
    ASSERT_THAT(d, IsOk());
    const auto check = [&](const std::vector<std::byte>& result) {
      return verify::CheckSample(ProductToCheck(kernel, target, product, result), 1, draw).value();
    };
    const verify::CheckResult right = check(*d);
    EXPECT_EQ(right.end, CheckEnd::kPassed);
    EXPECT_EQ(right.elements_checked, 2 * 33 * 21);
    for (int flip = 0; flip < 8; ++flip) {
      std::vector<std::byte> wrong = *d;
      const auto bit =
          static_cast<size_t>(random.Between(0, static_cast<int64_t>(wrong.size()) * 8 - 1));
      wrong[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      EXPECT_EQ(check(wrong).end, CheckEnd::kWrong) << "bit " << bit;
    }
    // With another factor it is another product.
    Product changed = product;
    changed.a_factors[static_cast<size_t>(BytesOf(c.type)) - 1] ^= std::byte{0x01};
    const verify::CheckResult other =
        verify::CheckSample(ProductToCheck(kernel, target, changed, *d), 1, draw).value();
    EXPECT_EQ(other.end, CheckEnd::kWrong);
  }
}

TEST(BlockVerifyTest, ChecksumsRefuseThem) {
  RandomSource random;
  const Kernel& kernel = KernelNamed(kCases[0].kernel);
  const Product product = ScaledProduct(kernel, kCases[0], random);
  const absl::Status status = verify::CanCheckSums(kernel, product.problem);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("factors of blocks"));
}

}  // namespace
}  // namespace gemmd
