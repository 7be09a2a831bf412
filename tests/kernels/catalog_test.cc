// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "kernels/dequantize.h"
#include "kernels/kernel.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/instructions.h"
#include "kernels/promotion.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

TEST(CatalogTest, NamesAreUniqueAndWellFormed) {
  std::set<std::string_view> names;
  for (const Kernel& kernel : Catalog()) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
  }
  for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
    EXPECT_THAT(
        std::string(kernel.name),
        MatchesRegex("[a-z]+\\.[a-z0-9]+\\.[a-z0-9]+\\.[a-z0-9]+(\\.via_[a-z0-9]+|\\.blocks)?"));
  }
}

// There is a kernel for each instruction, and all others are rows of libraries.
TEST(CatalogTest, EveryInstructionHasAKernel) {
  const auto promoted = static_cast<size_t>(
      std::count_if(mma::kInstructions.begin(), mma::kInstructions.end(), HasPromotedRows));
  EXPECT_GT(promoted, 0u);
  size_t split = 0;
  for (const Kernel& kernel : Catalog(DeviceKind::kSim)) {
    if (!kernel.recipe.splits_f32) continue;
    ++split;
    EXPECT_EQ(kernel.name, Concat(mma::NameOf(*kernel.instruction).view(), "_from_f32_p64"));
    EXPECT_EQ(kernel.a, ElementType::kF32);
    EXPECT_EQ(kernel.b, ElementType::kF32);
  }
  EXPECT_EQ(split, 3u);
  EXPECT_EQ(Catalog(DeviceKind::kSim).size(), mma::kInstructions.size() + promoted + split);
  EXPECT_EQ(Catalog(DeviceKind::kSim).size() + Catalog(DeviceKind::kCpu).size() +
                Catalog(DeviceKind::kCuda).size(),
            Catalog().size());
  for (const mma::Instruction& instruction : mma::kInstructions) {
    const absl::StatusOr<const Kernel*> kernel = FindKernel(mma::NameOf(instruction).view());
    ASSERT_THAT(kernel, IsOk());
    EXPECT_EQ((*kernel)->instruction, &instruction);
    EXPECT_EQ((*kernel)->recipe.promotion_k, 0);
    if (!HasPromotedRows(instruction)) continue;
    const absl::StatusOr<const Kernel*> promoting =
        FindKernel(Concat(mma::NameOf(instruction).view(), "_p128"));
    ASSERT_THAT(promoting, IsOk());
    EXPECT_EQ((*promoting)->instruction, &instruction);
    EXPECT_EQ((*promoting)->recipe.promotion_k, 128);
  }
}

// Names are stable across releases: these were promised.
TEST(CatalogTest, KnowsTheNamesOfThisRelease) {
  for (std::string_view name :
       {"onednn.f32.f32.f32", "onednn.f32.bf16.bf16", "onednn.s32.u8.s8",
        "onednn.f32.e4m3.e5m2.via_bf16", "onednn.f32.e2m1.e2m1.via_f32", "onednn.s32.s4.u4.via_s8",
        "onednn.f32.tf32.tf32.via_f32", "openblas.f64.f64.f64", "openblas.f64.f32.f32.via_f64",
        "openblas.s32.u8.u8.via_f64", "onednn.s32.b1.b1.via_s8", "gemmd.f32.e4m3.e4m3.blocks"}) {
    const absl::StatusOr<const Kernel*> kernel = FindKernel(name);
    ASSERT_THAT(kernel, IsOk());
    EXPECT_EQ((*kernel)->name, name);
  }
}

TEST(CatalogTest, NamesSayTypesAndEngine) {
  for (const Kernel& kernel : Catalog(DeviceKind::kCpu)) {
    std::string want = std::string(NameOf(kernel.recipe.accumulation)) + "." +
                       std::string(NameOf(kernel.a)) + "." + std::string(NameOf(kernel.b));
    EXPECT_THAT(std::string(kernel.name), HasSubstr(want));
    const std::string_view library = kernel.engine.substr(0, kernel.engine.find('.'));
    EXPECT_THAT(std::string(kernel.name), StartsWith(std::string(library)));
    EXPECT_FALSE(kernel.how.empty());
    EXPECT_FALSE(kernel.provider.empty());
  }
}

TEST(CatalogTest, RecipesAgreeWithTheTypes) {
  for (const Kernel& kernel : Catalog()) {
    SCOPED_TRACE(std::string(kernel.name));
    EXPECT_THAT(DefaultAccumulation(kernel.a, kernel.b), IsOk());
    const bool saturates = kernel.instruction != nullptr && kernel.instruction->saturates;
    EXPECT_EQ(kernel.recipe.exact, IsInteger(kernel.a) && !saturates);
    EXPECT_EQ(kernel.recipe.accumulation == ElementType::kS32, IsInteger(kernel.a));
    EXPECT_GE(BitsOf(kernel.recipe.a_compute), BitsOf(kernel.a));
    EXPECT_GE(BitsOf(kernel.recipe.b_compute), BitsOf(kernel.b));
    if (kernel.recipe.exact) {
      EXPECT_TRUE(kernel.batch_invariant);
    }
  }
}

// On any processor, some row computes every pair of types that has a product.
TEST(CatalogTest, PlainProcessorsRunEveryPair) {
  const Target plain;
  for (ElementType a : kAllElementTypes) {
    for (ElementType b : kAllElementTypes) {
      if (!DefaultAccumulation(a, b).ok()) continue;
      bool runs = false;
      Problem problem;
      problem.a.type = a;
      problem.b.type = b;
      for (const Kernel& kernel : Catalog()) {
        const bool is_of_types = (kernel.a == a && kernel.b == b) || Dequantizes(kernel, problem);
        runs |= is_of_types && kernel.available(plain).ok();
      }
      EXPECT_TRUE(runs) << NameOf(a) << " " << NameOf(b);
    }
  }
}

TEST(CatalogTest, ProcessorsWithoutAFeatureAreToldWhich) {
  const Kernel& s8 = *FindKernel("onednn.s32.s8.s8").value();
  EXPECT_THAT(s8.available(Target{}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("without AVX-512 VNNI")));
  EXPECT_THAT(s8.available(Target{.has_avx512_vnni = true}), IsOk());
  const Kernel& bf16 = *FindKernel("onednn.f32.bf16.bf16").value();
  EXPECT_THAT(bf16.available(Target{}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("without AVX-512")));
  EXPECT_THAT(bf16.available(Target{.has_avx512_core = true}), IsOk());
}

TEST(CatalogTest, UnknownNamesNameTheNearest) {
  EXPECT_THAT(FindKernel("onednn.f32.f32.f23"),
              StatusIs(absl::StatusCode::kNotFound,
                       testing::AllOf(StartsWith("kernel: got onednn.f32.f32.f23, want a name of "
                                                 "the catalogue (nearest: onednn.f32.f32.f32, "))));
  EXPECT_THAT(FindKernel(""), StatusIs(absl::StatusCode::kNotFound));
  const std::string huge(1 << 20, 'x');
  const absl::Status status = FindKernel(huge).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_LT(status.message().size(), 512u);
}

TEST(CatalogTest, RefusesWhatALibraryCannotIndex) {
  const Kernel& kernel = *FindKernel("openblas.f64.f64.f64").value();
  Problem problem;
  problem.accumulation = ElementType::kF64;
  problem.m = int64_t{1} << 31;
  problem.n = problem.k = 1;
  problem.a = TightLayout("a", ElementType::kF64, Order::kRowMajor, problem.m, 1).value();
  problem.b = TightLayout("b", ElementType::kF64, Order::kRowMajor, 1, 1).value();
  problem.d = problem.a;
  EXPECT_THAT(kernel.supports(problem),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "m: got 2147483648, want at most 2147483647 for OpenBLAS"));
}

TEST(CatalogTest, RefusesDepthsAtWhichSumsWouldNotBeExact) {
  const Kernel& kernel = *FindKernel("openblas.s32.b1.b1.via_f64").value();
  Problem problem;
  problem.accumulation = ElementType::kS32;
  problem.m = problem.n = 1;
  problem.k = int64_t{1} << 37;
  problem.a = TightLayout("a", ElementType::kB1, Order::kRowMajor, 1, problem.k).value();
  problem.b = TightLayout("b", ElementType::kB1, Order::kColumnMajor, problem.k, 1).value();
  problem.d = TightLayout("d", ElementType::kS32, Order::kRowMajor, 1, 1).value();
  ASSERT_THAT(Validate(problem), IsOk());
  EXPECT_THAT(kernel.supports(problem),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "k: got 137438953472, want less than 2^37, so that sums in f64 are exact"));
  problem.k = int64_t{1} << 31;
  problem.bit_operation = BitOperation::kXor;
  const Kernel& s8 = *FindKernel("onednn.s32.b1.b1.via_s8").value();
  EXPECT_THAT(s8.supports(problem), StatusIs(absl::StatusCode::kUnimplemented,
                                             "k: got 2147483648, want less than 2^31 for xor"));
}

TEST(CatalogTest, BitsAreCountedAsTheProductAsks) {
  const Kernel& kernel = *FindKernel("mma.m16n8k256.s32.b1.b1.s32.xor.popc").value();
  Problem problem = MakeProblem(kernel, 8, 8, 256, {});
  problem.bit_operation = BitOperation::kXor;
  EXPECT_THAT(kernel.supports(problem), IsOk());
  problem.bit_operation = BitOperation::kAnd;
  EXPECT_THAT(kernel.supports(problem),
              StatusIs(absl::StatusCode::kUnimplemented, "bit_operation: got and, want xor"));
}

TEST(CatalogTest, WorkspacesThatLeave63Bits) {
  const Kernel& kernel = *FindKernel("onednn.f32.e2m1.e2m1.via_f32").value();
  Problem problem;
  problem.m = problem.n = 1;
  problem.k = int64_t{1} << 60;  // Each operand takes 2^62 bytes as f32.
  problem.a = TightLayout("a", ElementType::kE2m1, Order::kRowMajor, 1, problem.k).value();
  problem.b = TightLayout("b", ElementType::kE2m1, Order::kColumnMajor, problem.k, 1).value();
  problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, 1, 1).value();
  ASSERT_THAT(Validate(problem), IsOk());
  EXPECT_THAT(kernel.workspace_bytes(problem), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(CatalogTest, KernelsRunOnDevicesOfTheirKindOnly) {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kSim}) {
    const Target target = {.kind = kind, .has_avx512_vnni = true, .has_avx512_core = true};
    for (const Kernel& kernel : Catalog()) {
      if (kernel.device_kind == kind) continue;
      EXPECT_THAT(kernel.available(target),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("device: got ")))
          << kernel.name;
    }
  }
}

}  // namespace
}  // namespace gemmd
