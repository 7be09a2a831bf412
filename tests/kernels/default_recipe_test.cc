// SPDX-License-Identifier: Apache-2.0
//
// Requests that name no kernel get one recipe for each chip and types, on the chip and on its
// simulator, whatever the extents and the measured rates.
#include "kernels/default_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/promotion.h"
#include "kernels/select.h"
#include "kernels/sim/rows.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using mma::Chip;
using testing::HasSubstr;

// What the default depends on.
struct Types {
  ElementType a;
  ElementType b;
  ElementType accumulation;
  bool is_sparse = false;
  bool is_xor = false;
  bool is_fast = false;
};

// Every combination for which a product is defined, without factors of blocks.
std::vector<Types> AllTypes() {
  std::vector<Types> all;
  for (const ElementType a : kAllElementTypes) {
    for (const ElementType b : kAllElementTypes) {
      const absl::StatusOr<ElementType> accumulation = DefaultAccumulation(a, b);
      if (!accumulation.ok()) continue;
      for (const bool is_sparse : {false, true}) {
        if (is_sparse && !SparseFormOf(a)) continue;
        all.push_back({a, b, *accumulation, is_sparse});
        all.push_back({a, b, *accumulation, is_sparse, false, true});
        if (a == ElementType::kB1) all.push_back({a, b, *accumulation, is_sparse, true});
        if (*accumulation == ElementType::kF32 && BitsOf(a) <= 16) {
          all.push_back({a, b, ElementType::kF16, is_sparse});
        }
      }
    }
  }
  return all;
}

Problem ProblemOf(const Types& types, int64_t m, int64_t n, int64_t k) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.accumulation = types.accumulation;
  problem.fast_accumulation = types.is_fast;
  problem.bit_operation = types.is_xor ? BitOperation::kXor : BitOperation::kAnd;
  problem.a = types.is_sparse ? TightSparseLayout("a", types.a, m, k).value()
                              : TightLayout("a", types.a, Order::kRowMajor, m, k).value();
  problem.b = TightLayout("b", types.b, Order::kRowMajor, k, n).value();
  problem.d = TightLayout("d", types.accumulation, Order::kRowMajor, m, n).value();
  return problem;
}

std::string TextOf(const Types& types, Chip chip) {
  std::string text(mma::NameOf(chip));
  for (const ElementType type : {types.a, types.b, types.accumulation}) {
    text += " " + std::string(NameOf(type));
  }
  return text + (types.is_sparse ? " sparse" : "") + (types.is_xor ? " xor" : "") +
         (types.is_fast ? " fast" : "");
}

// Random rates, as a machine might have measured them.
DeviceProfile RandomProfile(DeviceKind kind, Chip chip, RandomSource& random) {
  DeviceProfile profile;
  profile.target = {.kind = kind, .chip = chip, .multiprocessors = 132};
  profile.memory_bytes_per_second = 4e12;
  for (size_t i = 0; i < Catalog(kind).size(); ++i) {
    profile.kernel_rates.push_back(1e9 * static_cast<double>(random.Between(1, 1000)));
  }
  return profile;
}

TEST(DefaultRecipeTest, IsThisOne) {
  struct Row {
    Chip chip;
    Types types;
    std::string_view name;
  };
  using enum ElementType;
  const std::vector<Row> rows = {
      {Chip::kSm70, {kF16, kF16, kF32}, "mma.m8n8k4.row.row.f32.f16.f16.f32"},
      {Chip::kSm80, {kF16, kF16, kF32}, "mma.m16n8k16.f32.f16.f16.f32"},
      {Chip::kSm80, {kF16, kF16, kF16}, "mma.m16n8k16.f32.f16.f16.f32"},
      {Chip::kSm80, {kTf32, kTf32, kF32}, "mma.m16n8k8.f32.tf32.tf32.f32"},
      {Chip::kSm80, {kF64, kF64, kF64}, "mma.m8n8k4.f64"},
      {Chip::kSm86, {kF16, kF16, kF16}, "mma.m16n8k16.f16.f16.f16.f16"},
      {Chip::kSm89, {kE4m3, kE4m3, kF32}, "mma.m16n8k32.f32.e4m3.e4m3.f32_p128"},
      {Chip::kSm89, {kE4m3, kE4m3, kF32, false, false, true}, "mma.m16n8k32.f32.e4m3.e4m3.f32"},
      {Chip::kSm90, {kF16, kF16, kF32}, "wgmma.m64n256k16.f32.f16.f16"},
      {Chip::kSm90, {kF16, kF16, kF16}, "wgmma.m64n256k16.f32.f16.f16"},
      {Chip::kSm90, {kBf16, kBf16, kF32}, "wgmma.m64n256k16.f32.bf16.bf16"},
      {Chip::kSm90, {kBf16, kBf16, kF32, true}, "wgmma.sp.m64n256k32.f32.bf16.bf16"},
      {Chip::kSm90, {kTf32, kTf32, kF32}, "wgmma.m64n256k8.f32.tf32.tf32"},
      {Chip::kSm90, {kF32, kF32, kF32}, "wgmma.m64n128k16.f32.f16.f16_from_f32_p64"},
      {Chip::kSm90, {kF64, kF64, kF64}, "mma.m16n8k16.f64"},
      {Chip::kSm90, {kE4m3, kE4m3, kF32}, "wgmma.m64n256k32.f32.e4m3.e4m3_p128"},
      {Chip::kSm90, {kE4m3, kE5m2, kF32}, "wgmma.m64n256k32.f32.e4m3.e5m2_p128"},
      {Chip::kSm90, {kE5m2, kE5m2, kF32, true}, "wgmma.sp.m64n256k64.f32.e5m2.e5m2_p128"},
      {Chip::kSm90, {kE4m3, kE4m3, kF32, false, false, true}, "wgmma.m64n256k32.f32.e4m3.e4m3"},
      {Chip::kSm90, {kS8, kS8, kS32}, "wgmma.m64n256k32.s32.s8.s8"},
      {Chip::kSm100, {kE4m3, kE4m3, kF32}, "mma.m16n8k32.f32.e4m3.e4m3.f32"},
      {Chip::kSm120, {kE4m3, kE4m3, kF32}, "mma.m16n8k32.f32.e4m3.e4m3.f32"},
      {Chip::kSm120, {kE2m1, kE2m1, kF32}, "mma.m16n8k32.kind::f8f6f4.f32.e2m1.e2m1.f32"}};
  for (const Row& row : rows) {
    const Kernel* const kernel = DefaultRecipe(row.chip, ProblemOf(row.types, 64, 64, 64));
    ASSERT_NE(kernel, nullptr) << row.name;
    EXPECT_EQ(kernel->name, row.name) << TextOf(row.types, row.chip);
  }
  EXPECT_EQ(DefaultRecipe(Chip::kSm75, ProblemOf({kE4m3, kE4m3, kF32}, 64, 64, 64)), nullptr);
  EXPECT_EQ(DefaultRecipe(Chip::kSm80, ProblemOf({kF32, kF32, kF32}, 64, 64, 64)), nullptr);
  EXPECT_EQ(DefaultRecipe(Chip::kSm90, ProblemOf({kF32, kF32, kF64}, 64, 64, 64)), nullptr);
}

// The GPU and its simulator choose rows that give the same bits: those of the default. Where the
// simulator has a kernel, so has the GPU.
TEST(DefaultRecipeTest, GpuAndSimulatorHaveTheSameWhateverTheExtentsAndRates) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  constexpr int64_t kExtents[] = {1, 16, 65, 2048};
  std::map<Chip, size_t> compared;
  for (const Chip chip : mma::kAllChips) {
    const DeviceProfile gpu = RandomProfile(DeviceKind::kCuda, chip, random);
    DeviceProfile simulator = RandomProfile(DeviceKind::kSim, chip, random);
    for (const Types& types : AllTypes()) {
      SCOPED_TRACE(TextOf(types, chip));
      for (const int64_t m : kExtents) {
        const int64_t n = kExtents[random.Between(0, 3)];
        const Problem problem = ProblemOf(types, m, n, 8 * random.Between(1, 600));
        const Kernel* const model = DefaultRecipe(chip, problem);
        const Kernel* const simulated = FindBest(Catalog(DeviceKind::kSim), problem, {}, simulator);
        const Kernel* const chosen = FindBest(Catalog(DeviceKind::kCuda), problem, {}, gpu);
        ASSERT_EQ(simulated == nullptr, model == nullptr);
        if (model == nullptr) {
          EXPECT_EQ(chosen, nullptr);
          continue;
        }
        EXPECT_TRUE(GiveSameBits(*simulated, *model, chip)) << simulated->name;
        if (!mma::HasAsyncCopies(chip)) continue;  // There are no rows for it.
        ASSERT_NE(chosen, nullptr) << "no row of a GPU has the recipe of " << model->name;
        EXPECT_TRUE(GiveSameBits(*chosen, *model, chip)) << chosen->name;
        ++compared[chip];
      }
    }
  }
  for (const Chip chip : mma::kAllChips) {
    if (!mma::HasAsyncCopies(chip)) continue;
    EXPECT_GT(compared[chip], 20u) << mma::NameOf(chip);
  }
}

TEST(DefaultRecipeTest, IsToldAndOthersAreRefused) {
  const Types types = {ElementType::kE4m3, ElementType::kE4m3, ElementType::kF32};
  DeviceProfile profile;
  profile.target = {.kind = DeviceKind::kSim, .chip = Chip::kSm90};
  const Selection selection =
      Select(Catalog(DeviceKind::kSim), ProblemOf(types, 64, 64, 64), {}, profile);
  EXPECT_EQ(
      selection.recipe,
      "sums of 32 products, 13 fraction bits, rounded toward zero to f32, times the factors of "
      "their blocks if there are any, added to a total "
      "in f32 every 128 of k; in ascending k, not split");
  const Kernel* const fast = *FindKernel("wgmma.m64n8k32.f32.e4m3.e4m3");
  for (const Refusal& refusal : selection.refusals) {
    if (refusal.kernel != fast) continue;
    EXPECT_THAT(refusal.reason, HasSubstr("recipe: got sums of 32 products, 13 fraction bits"));
    EXPECT_THAT(refusal.reason, HasSubstr("ask for the kernel by name"));
    return;
  }
  ADD_FAILURE() << "the kernel without promotion was not refused";
}

// A named kernel is used, with its own recipe.
TEST(DefaultRecipeTest, IsNotThatOfANamedKernel) {
  const Types types = {ElementType::kE4m3, ElementType::kE4m3, ElementType::kF32};
  const Problem problem = ProblemOf(types, 256, 256, 256);
  DeviceProfile profile;
  profile.target = {.kind = DeviceKind::kCuda, .chip = Chip::kSm90, .multiprocessors = 132};
  for (const std::string_view name :
       {"wgmma.m64n128k32.f32.e4m3.e4m3", "wgmma.m64n128k32.f32.e4m3.e4m3_p128",
        "mma.m16n8k32.f32.e4m3.e4m3.f32"}) {
    const Kernel* const wanted = *FindKernel(name);
    const absl::StatusOr<const Kernel*> chosen =
        Choose(Catalog(DeviceKind::kCuda), problem, {.kernel = wanted}, profile);
    ASSERT_THAT(chosen, IsOk());
    EXPECT_TRUE(ShareInstruction(**chosen, *wanted)) << (*chosen)->name;
    EXPECT_EQ((*chosen)->recipe.promotion_k, wanted->recipe.promotion_k);
  }
}

}  // namespace
}  // namespace gemmd
