// SPDX-License-Identifier: Apache-2.0
//
// Rows that claim to give the same bits do: the simulated rows of every chip, which have the chip's
// bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/warp_work.h"
#include "kernels/default_recipe.h"
#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/select.h"
#include "kernels/sim/rows.h"
#include "tests/kernels/sim/operand_families.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using mma::Chip;

const Kernel& Simulated(std::string_view name) {
  for (const Kernel& kernel : SimKernels()) {
    if (kernel.name == name) return kernel;
  }
  ADD_FAILURE() << "no kernel " << name;
  return SimKernels().front();
}

// The rows that the chip has, grouped by equal bits.
std::vector<std::vector<const Kernel*>> ClassesOn(Chip chip) {
  const Target target = {.kind = DeviceKind::kSim, .chip = chip};
  std::vector<std::vector<const Kernel*>> classes;
  for (const Kernel& kernel : SimKernels()) {
    if (!kernel.available(target).ok()) continue;
    auto like = classes.begin();
    while (like != classes.end() && !GiveSameBits(kernel, *like->front(), chip)) ++like;
    if (like == classes.end()) like = classes.emplace(classes.end());
    like->push_back(&kernel);
  }
  return classes;
}

// Requests have no sparse form for it.
bool HasNoPortableForm(const Kernel& kernel) {
  return kernel.instruction->is_sparse() &&
         SparseFormOf(kernel.a)->name() != NameOf(SparsityOf(*kernel.instruction));
}

// D computed by a simulator's kernel, over poison.
std::vector<std::byte> ProductBy(const Kernel& kernel, Chip chip, const FamilyCase& product) {
  const Problem& problem = product.problem;
  std::vector<std::byte> workspace(static_cast<size_t>(kernel.workspace_bytes(problem).value()));
  std::vector<std::byte> d(static_cast<size_t>(problem.d.batch_stride_bytes), std::byte{0xa5});
  EXPECT_THAT(kernel.supports(problem), IsOk());
  EXPECT_THAT(kernel.launch({.problem = problem,
                             .target = {.kind = DeviceKind::kSim, .chip = chip},
                             .a = product.a.data(),
                             .b = product.b.data(),
                             .c = nullptr,
                             .bias = nullptr,
                             .a_scale = {},
                             .b_scale = {},
                             .d = d.data(),
                             .workspace = absl::MakeSpan(workspace)}),
              IsOk());
  return d;
}

// One row of each class compared with one other, on operands of every family. k is a whole number
// of groups of a sparse A.
TEST(SameBitsTest, AreTheSame) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  size_t compared = 0;
  size_t sparse = 0;
  for (const Chip chip : {Chip::kSm70, Chip::kSm80, Chip::kSm89, Chip::kSm90, Chip::kSm120}) {
    for (const std::vector<const Kernel*>& like : ClassesOn(chip)) {
      if (like.size() < 2 || HasNoPortableForm(*like.front())) continue;
      const auto other =
          static_cast<size_t>(random.Between(1, static_cast<int64_t>(like.size()) - 1));
      const Kernel& one = *like.front();
      const Kernel& next = *like[other];
      SCOPED_TRACE(testing::Message()
                   << one.name << " and " << next.name << " on " << mma::NameOf(chip));
      mma::Instruction instruction = *one.instruction;
      instruction.a = one.a;
      instruction.b = one.b;
      for (int i = 0; i < 3; ++i) {
        const auto family = kAllFamilies[static_cast<size_t>(
            random.Between(0, static_cast<int64_t>(kAllFamilies.size()) - 1))];
        const FamilyCase product =
            MakeCase(instruction, family, random.Between(1, 20), random.Between(1, 20),
                     8 * random.Between(1, 40), random);
        EXPECT_EQ(ProductBy(one, chip, product), ProductBy(next, chip, product)) << NameOf(family);
      }
      ++compared;
      if (one.instruction->is_sparse()) ++sparse;
    }
  }
  EXPECT_GE(compared, 40);
  EXPECT_GE(sparse, 10);
}

// GPU kernels compute a column-major D by its transpose (kernels/cuda/plan.h).
TEST(SameBitsTest, OfTheTranspose) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const absl::Span<const Kernel> kernels = SimKernels();
  size_t compared = 0;
  for (const Kernel& kernel : kernels) {
    const mma::Instruction& instruction = *kernel.instruction;
    if (!instruction.is_warpgroup() || instruction.is_sparse() || instruction.n != 8 ||
        kernel.recipe.splits_f32) {
      continue;
    }
    mma::Instruction turned = instruction;
    std::swap(turned.a, turned.b);
    const auto other = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& candidate) {
      return *candidate.instruction == turned &&
             candidate.recipe.promotion_k == kernel.recipe.promotion_k &&
             !candidate.recipe.splits_f32;
    });
    ASSERT_NE(other, kernels.end()) << kernel.name;
    for (const auto family : kAllFamilies) {
      const FamilyCase product = MakeCase(instruction, family, random.Between(1, 20),
                                          random.Between(1, 20), random.Between(1, 300), random);
      const FamilyCase transpose = {Transposed(product.problem), product.b, product.a};
      EXPECT_EQ(ProductBy(kernel, Chip::kSm90, product), ProductBy(*other, Chip::kSm90, transpose))
          << kernel.name << " " << NameOf(family);
    }
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

TEST(SameBitsTest, AreNotPromisedWhereSumsDiffer) {
  const auto same = [](std::string_view x, std::string_view y) {
    return GiveSameBits(Simulated(x), Simulated(y), Chip::kSm90);
  };
  EXPECT_TRUE(same("mma.m16n8k16.f32.f16.f16.f32", "wgmma.m64n8k16.f32.f16.f16"));
  EXPECT_TRUE(same("wgmma.m64n16k8.f32.tf32.tf32", "wgmma.m64n256k8.f32.tf32.tf32"));
  // The depth of a fused sum is 8 and 16.
  EXPECT_FALSE(same("mma.m16n8k8.f32.f16.f16.f32", "mma.m16n8k16.f32.f16.f16.f32"));
  // The chip's tensor core lacks the instruction and emulates it with others.
  EXPECT_FALSE(same("mma.m16n8k32.f32.e4m3.e4m3.f32", "wgmma.m64n8k32.f32.e4m3.e4m3"));
  EXPECT_FALSE(same("mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f32.bf16.bf16.f32"));
  EXPECT_FALSE(same("mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f16.f16.f16.f16"));
  EXPECT_TRUE(same("wgmma.m64n8k32.f32.e4m3.e4m3_p128", "wgmma.m64n256k32.f32.e4m3.e4m3_p128"));
  EXPECT_FALSE(same("wgmma.m64n8k32.f32.e4m3.e4m3_p128", "wgmma.m64n8k32.f32.e4m3.e4m3"));
  EXPECT_TRUE(same("mma.sp.m16n8k32.f32.f16.f16.f32", "wgmma.sp.m64n8k32.f32.f16.f16"));
  EXPECT_FALSE(same("mma.sp.m16n8k16.f32.f16.f16.f32", "mma.sp.m16n8k32.f32.f16.f16.f32"));
  // Zeros after the operands turn -0 into 0, and a deeper instruction has more of them.
  EXPECT_FALSE(same("mma.m8n8k4.f64", "mma.m16n8k16.f64"));
}

// A wide row may continue a sum that a narrow row has begun.
TEST(SameBitsTest, LetManyRowsOfDHaveAWideTile) {
  DeviceProfile profile;
  profile.target = {.kind = DeviceKind::kCuda, .chip = Chip::kSm90, .multiprocessors = 132};
  profile.memory_bytes_per_second = 4e12;
  const absl::Span<const Kernel> catalog = Catalog(DeviceKind::kCuda);
  // Large tiles load less data and multiply faster.
  for (const Kernel& kernel : catalog) {
    const Tile& tile = CudaRowOf(kernel)->tile;
    profile.kernel_rates.push_back(2e10 * std::min(tile.m * tile.n, 32768));
  }
  const auto problem_of = [](int64_t m) {
    Problem problem;
    problem.m = m;
    problem.n = problem.k = 8192;
    problem.a = TightLayout("a", ElementType::kF16, Order::kRowMajor, m, 8192).value();
    problem.b = TightLayout("b", ElementType::kF16, Order::kColumnMajor, 8192, 8192).value();
    problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, m, 8192).value();
    return problem;
  };
  const auto few = std::find_if(catalog.begin(), catalog.end(), [&](const Kernel& kernel) {
    return IsNarrow(*CudaRowOf(kernel)) && kernel.supports(problem_of(8)).ok();
  });
  ASSERT_NE(few, catalog.end());
  const Problem large = problem_of(2048);
  const Kernel& many = FindBestLike(*few, catalog, large, profile);
  EXPECT_FALSE(IsNarrow(*CudaRowOf(many))) << many.name;
  EXPECT_GT(Predict(*few, large, profile).kernel_ns, 2 * Predict(many, large, profile).kernel_ns);
}

}  // namespace
}  // namespace gemmd
