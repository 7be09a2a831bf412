// SPDX-License-Identifier: Apache-2.0
//
// Quantized operands in products of 16-bit floats: on the CPU and in the simulator they give the
// bits of the same product of operands that this test dequantizes itself, one element at a time.
#include "kernels/dequantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/default_recipe.h"
#include "kernels/device_profile.h"
#include "kernels/kernel.h"
#include "kernels/select.h"
#include "kernels/verify/recompute.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using enum ElementType;
using testing::HasSubstr;

constexpr std::array<ElementType, 9> kNarrowTypes = {kE4m3, kE5m2, kE3m2, kE2m3, kE2m1,
                                                     kS8,   kU8,   kS4,   kU4};
constexpr std::array<FactorType, 3> kEveryFactorType = {FactorType::kF32, FactorType::kUe8m0,
                                                        FactorType::kUe4m3};

const Kernel& NamedKernel(std::string_view name) { return *FindKernel(name).value(); }

Target TargetOf(const Kernel& kernel) {
  if (kernel.device_kind == DeviceKind::kCpu) return HostTarget();
  return {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90};
}

// The kernel's problem, with operands of other types.
Problem ProblemOf(const Kernel& kernel, ElementType a, ElementType b, int64_t m, int64_t n,
                  int64_t k, const Layouts& layouts) {
  Problem problem = MakeProblem(kernel, m, n, k, layouts);
  problem.a = MakeLayout(a, layouts.a, m, k, layouts, layouts.broadcasts_a);
  problem.b = MakeLayout(b, layouts.b, k, n, layouts, layouts.broadcasts_b);
  return problem;
}

// A factor, according to its definition.
float FactorOf(const BlockScale& blocks, const std::vector<std::byte>& factors, int64_t extent,
               int64_t k, int64_t matrix, int64_t line, int64_t p) {
  const int64_t down = (extent + blocks.lines - 1) / blocks.lines;
  const int64_t along = (k + blocks.depth - 1) / blocks.depth;
  int64_t index = line / blocks.lines * along + p / blocks.depth;
  if (blocks.per_matrix) index += matrix * down * along;
  const int64_t bytes = blocks.type == FactorType::kF32 ? 4 : 1;
  const std::byte* const at = factors.data() + index * bytes;
  if (blocks.type == FactorType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  const int code = std::to_integer<int>(*at);
  if (blocks.type == FactorType::kUe8m0) {
    return code == 255 ? NAN : std::ldexp(1.0F, code - 127);
  }
  return static_cast<float>(Decode(kE4m3, static_cast<uint64_t>(code & 0x7f)));
}

// Replaces an operand by its elements times their factors, in a tight layout of each matrix.
void DequantizeByHand(ElementType to, bool is_a, Product& product) {
  Problem& problem = product.problem;
  MatrixLayout& layout = is_a ? problem.a : problem.b;
  if (BitsOf(layout.type) > 8) return;
  std::vector<std::byte>& bytes = is_a ? product.a : product.b;
  const MatrixView from = {layout, problem.batch, bytes.data()};
  MatrixLayout made = TightLayout("x", to, layout.order, layout.rows, layout.columns).value();
  std::vector<std::byte> values(static_cast<size_t>(made.batch_stride_bytes * problem.batch));
  ScaleKind& kind = is_a ? problem.a_scale : problem.b_scale;
  for (int64_t matrix = 0; matrix < problem.batch; ++matrix) {
    for (int64_t i = 0; i < layout.rows; ++i) {
      for (int64_t j = 0; j < layout.columns; ++j) {
        auto value = static_cast<float>(from.value(matrix, i, j));
        if (kind == ScaleKind::kBlocks) {
          value *=
              FactorOf(is_a ? problem.a_blocks : problem.b_blocks,
                       is_a ? product.a_factors : product.b_factors, is_a ? problem.m : problem.n,
                       problem.k, matrix, is_a ? i : j, is_a ? j : i);
        }
        const bool is_row_major = made.order == Order::kRowMajor;
        StoreBits(to,
                  values.data() + matrix * made.batch_stride_bytes +
                      (is_row_major ? i : j) * made.line_stride_bytes(),
                  is_row_major ? j : i, Encode(to, value));
      }
    }
  }
  bytes = values;
  layout = made;
  if (kind == ScaleKind::kBlocks) kind = ScaleKind::kNone;
}

void ExpectBits(const Kernel& kernel, const Product& product) {
  SCOPED_TRACE(std::string(kernel.name) + ": " + Describe(product.problem));
  Product by_hand = product;
  DequantizeByHand(kernel.a, true, by_hand);
  DequantizeByHand(kernel.a, false, by_hand);
  const auto got = RunKernel(kernel, product, TargetOf(kernel));
  const auto want = RunKernel(kernel, by_hand, TargetOf(kernel));
  ASSERT_THAT(got, IsOk());
  ASSERT_THAT(want, IsOk());
  ASSERT_TRUE(*got == *want);
  EXPECT_TRUE(PaddingIsUntouched(product.problem, *got));
}

class DequantizeTest : public testing::Test {
 protected:
  void SetUp() override { SetThreads(1); }

  // A random choice of blocks, or none.
  void DrawBlocks(bool may_have_f32, ScaleKind& kind, BlockScale& blocks, int64_t extent,
                  int64_t k) {
    kind = random_.Between(0, 3) == 0 ? ScaleKind::kNone : ScaleKind::kBlocks;
    blocks = {
        .type = kEveryFactorType[static_cast<size_t>(random_.Between(may_have_f32 ? 0 : 1, 2))],
        .lines = random_.Between(1, extent + 1),
        .depth = random_.Between(1, k + 1),
        .per_matrix = random_.Flip()};
  }

  Layouts DrawLayouts() {
    Layouts layouts;
    layouts.a = random_.Flip() ? Order::kRowMajor : Order::kColumnMajor;
    layouts.b = random_.Flip() ? Order::kRowMajor : Order::kColumnMajor;
    layouts.d = random_.Flip() ? Order::kRowMajor : Order::kColumnMajor;
    layouts.padding = random_.Between(0, 3);
    layouts.batch = random_.Between(1, 3);
    layouts.batch_gap = random_.Between(0, 2);
    layouts.broadcasts_a = random_.Flip();
    layouts.broadcasts_b = random_.Flip();
    return layouts;
  }

  RandomSource random_;
};

// Weights of every type, on either side, times f16 and bf16, with factors of every type or none.
TEST_F(DequantizeTest, WeightsTimesHalves) {
  SCOPED_TRACE(random_.trace());
  for (const std::string_view name :
       {"onednn.f32.f16.f16.via_f32", "onednn.f32.bf16.bf16.via_f32",
        "wgmma.m64n256k16.f32.f16.f16", "mma.m16n8k16.f32.bf16.bf16.f32"}) {
    const Kernel& kernel = NamedKernel(name);
    for (const ElementType type : kNarrowTypes) {
      for (const bool is_a : {false, true}) {
        for (int turn = 0; turn < 4; ++turn) {
          const int64_t m = random_.Between(1, 20);
          const int64_t n = random_.Between(1, 20);
          const int64_t k = random_.Between(1, 70);
          Problem problem = ProblemOf(kernel, is_a ? type : kernel.a, is_a ? kernel.a : type, m, n,
                                      k, DrawLayouts());
          if (is_a) {
            DrawBlocks(true, problem.a_scale, problem.a_blocks, m, k);
          } else {
            DrawBlocks(true, problem.b_scale, problem.b_blocks, n, k);
          }
          ExpectBits(kernel, FillCase(problem, Pattern::kRandom, random_));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// MX and NVFP4, and any other floats of at most 8 bits, in bf16.
TEST_F(DequantizeTest, PairsOfSmallFloats) {
  SCOPED_TRACE(random_.trace());
  const Kernel& kernel = NamedKernel("wgmma.m64n128k16.f32.bf16.bf16");
  for (const ElementType a : kNarrowTypes) {
    for (const ElementType b : kNarrowTypes) {
      if (IsInteger(a) || IsInteger(b)) continue;
      for (int turn = 0; turn < 4; ++turn) {
        const int64_t m = random_.Between(1, 20);
        const int64_t n = random_.Between(1, 20);
        const int64_t k = random_.Between(1, 70);
        Problem problem = ProblemOf(kernel, a, b, m, n, k, DrawLayouts());
        DrawBlocks(false, problem.a_scale, problem.a_blocks, m, k);
        DrawBlocks(false, problem.b_scale, problem.b_blocks, n, k);
        ExpectBits(kernel, FillCase(problem, Pattern::kRandom, random_));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Every code of every type, times every factor of 8 bits and hostile ones of 32.
TEST_F(DequantizeTest, EveryCodeAndFactor) {
  for (const ElementType from : kNarrowTypes) {
    for (const ElementType to : {kF16, kBf16}) {
      for (const FactorType type : kEveryFactorType) {
        std::vector<float> values = {0.0F, -0.0F, 1e-45F, 1e-38F, 0.1F, 3.4e38F, INFINITY, NAN, -7};
        if (type != FactorType::kF32) values.resize(256);
        const auto count = static_cast<int64_t>(values.size());
        const int64_t codes = int64_t{1} << BitsOf(from);
        std::vector<std::byte> source(static_cast<size_t>(codes * BitsOf(from) / 8));
        for (int64_t i = 0; i < codes; ++i) {
          StoreBits(from, source.data(), i, static_cast<uint64_t>(i));
        }
        std::vector<std::byte> factors(static_cast<size_t>(count * BytesOf(type)));
        for (int64_t i = 0; i < count; ++i) {
          factors[static_cast<size_t>(i)] = static_cast<std::byte>(i);
        }
        if (type == FactorType::kF32) std::memcpy(factors.data(), values.data(), factors.size());
        // One line, repeated for each factor.
        Problem problem;
        problem.m = count;
        problem.n = 1;
        problem.k = codes;
        problem.a = TightLayout("a", from, Order::kRowMajor, count, codes).value();
        problem.b = TightLayout("b", to, Order::kColumnMajor, codes, 1).value();
        problem.d = TightLayout("d", kF32, Order::kRowMajor, count, 1).value();
        problem.a_scale = ScaleKind::kBlocks;
        problem.a_blocks = {.type = type, .lines = 1, .depth = codes};
        ASSERT_THAT(Validate(problem), IsOk());
        const Dequantization made = DequantizationOf(problem, to).value();
        std::vector<std::byte> all;
        for (int64_t i = 0; i < count; ++i) all.insert(all.end(), source.begin(), source.end());
        std::vector<std::byte> target(static_cast<size_t>(made.a_bytes));
        Dequantize(DequantizeJobOf(problem, made, mma::Operand::kA, all.data(), factors.data(),
                                   target.data()),
                   nullptr);
        for (int64_t i = 0; i < count; ++i) {
          const float factor = FactorOf(problem.a_blocks, factors, count, codes, 0, i, 0);
          for (int64_t j = 0; j < codes; ++j) {
            const float value = static_cast<float>(Decode(from, static_cast<uint64_t>(j))) * factor;
            ASSERT_EQ(LoadBits(to, target.data() + i * made.problem.a.line_stride_bytes(), j),
                      Encode(to, value))
                << NameOf(from) << " " << j << " times " << factor << " into " << NameOf(to);
          }
        }
      }
    }
  }
}

// Factors of 8 bits are exact in bf16 unless the product leaves its range.
TEST_F(DequantizeTest, SmallFactorsAreExact) {
  for (const ElementType from : {kE4m3, kE5m2, kE3m2, kE2m3, kE2m1}) {
    for (const FactorType type : {FactorType::kUe8m0, FactorType::kUe4m3}) {
      for (int code = 0; code < 256; ++code) {
        const float factor = DecodeFactorCode(type, static_cast<uint32_t>(code));
        for (uint64_t element = 0; element < uint64_t{1} << BitsOf(from); ++element) {
          const double exact = Decode(from, element) * factor;
          const bool is_in_range = std::abs(exact) < 0x1p128 && std::abs(exact) >= 0x1p-126;
          if (!is_in_range) continue;
          ASSERT_EQ(Decode(kBf16, Encode(kBf16, exact)), exact) << NameOf(from) << " " << factor;
        }
      }
    }
  }
}

Problem TypedProblem(ElementType a, ElementType b) {
  Problem problem;
  problem.m = problem.n = problem.k = 64;
  problem.a = TightLayout("a", a, Order::kRowMajor, 64, 64).value();
  problem.b = TightLayout("b", b, Order::kColumnMajor, 64, 64).value();
  problem.d = TightLayout("d", kF32, Order::kRowMajor, 64, 64).value();
  return problem;
}

TEST_F(DequantizeTest, TypesThatAreDequantized) {
  for (const ElementType type : kNarrowTypes) {
    EXPECT_EQ(DequantizedType(TypedProblem(kF16, type)), kF16);
    EXPECT_EQ(DequantizedType(TypedProblem(type, kBf16)), kBf16);
    EXPECT_EQ(DequantizedType(TypedProblem(type, kE4m3)),
              IsFloat(type) ? std::optional(kBf16) : std::nullopt);
  }
  for (const ElementType type : {kF64, kF32, kTf32, kF16, kBf16, kB1}) {
    EXPECT_EQ(DequantizedType(TypedProblem(type, type)), std::nullopt) << NameOf(type);
  }
  EXPECT_EQ(DequantizedType(TypedProblem(kF16, kB1)), std::nullopt);
  Problem problem = TypedProblem(kE2m1, kE4m3);
  problem.b_scale = ScaleKind::kBlocks;
  problem.b_blocks = {.type = FactorType::kUe4m3, .lines = 1, .depth = 16};
  EXPECT_EQ(DequantizedType(problem), kBf16);
  problem.b_blocks.type = FactorType::kF32;  // It would be rounded.
  EXPECT_EQ(DequantizedType(problem), std::nullopt);
  problem = TypedProblem(kBf16, kS4);
  problem.a = TightSparseLayout("a", kBf16, 64, 64).value();
  EXPECT_EQ(DequantizedType(problem), kBf16);
  problem = TypedProblem(kS8, kBf16);
  problem.a = TightSparseLayout("a", kS8, 64, 64).value();
  EXPECT_EQ(DequantizedType(problem), std::nullopt);
}

// A chip's own instructions come before bf16.
TEST_F(DequantizeTest, DefaultRecipes) {
  struct Row {
    mma::Chip chip;
    ElementType a, b;
    std::optional<FactorType> factors;
    std::string_view name;
  };
  using mma::Chip;
  const std::vector<Row> rows = {
      {Chip::kSm90, kBf16, kS4, FactorType::kF32, "wgmma.m64n256k16.f32.bf16.bf16"},
      {Chip::kSm90, kE4m3, kF16, std::nullopt, "wgmma.m64n256k16.f32.f16.f16"},
      {Chip::kSm90, kE2m1, kE2m1, FactorType::kUe4m3, "wgmma.m64n256k16.f32.bf16.bf16"},
      {Chip::kSm90, kE4m3, kE4m3, FactorType::kUe8m0, "wgmma.m64n256k16.f32.bf16.bf16"},
      {Chip::kSm90, kE4m3, kE4m3, std::nullopt, "wgmma.m64n256k32.f32.e4m3.e4m3_p128"},
      {Chip::kSm80, kE4m3, kE5m2, std::nullopt, "mma.m16n8k16.f32.bf16.bf16.f32"},
      {Chip::kSm120, kE2m1, kE2m1, FactorType::kUe4m3,
       "mma.m16n8k64.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"},
      {Chip::kSm90, kE4m3, kE4m3, FactorType::kF32, ""},
  };
  for (const Row& row : rows) {
    Problem problem = TypedProblem(row.a, row.b);
    if (row.factors) {
      problem.b_scale = ScaleKind::kBlocks;
      problem.b_blocks = {.type = *row.factors, .lines = 1, .depth = 16};
    }
    const Kernel* const kernel = DefaultRecipe(row.chip, problem);
    EXPECT_EQ(kernel == nullptr ? "" : kernel->name, row.name) << Describe(problem);
  }
}

TEST_F(DequantizeTest, SelectionSaysSo) {
  DeviceProfile profile;
  profile.target = {.kind = DeviceKind::kSim, .chip = mma::Chip::kSm90};
  const Problem problem = TypedProblem(kBf16, kS4);
  const Selection selection = Select(Catalog(DeviceKind::kSim), problem, {}, profile);
  ASSERT_FALSE(selection.candidates.empty());
  EXPECT_THAT(selection.recipe,
              testing::StartsWith("operands of at most 8 bits dequantized to bf16: sums of"));
  EXPECT_EQ(FindBest(Catalog(DeviceKind::kSim), problem, {}, profile),
            selection.candidates.front().kernel);
}

// An operand without factors has a form: a launch that finds it made does not read the operand.
TEST_F(DequantizeTest, FormsOfOperandsWithoutFactors) {
  const Kernel& kernel = NamedKernel("onednn.f32.bf16.bf16.via_f32");
  Problem problem = ProblemOf(kernel, kBf16, kS4, 5, 9, 33, Layouts());
  Product product = FillCase(problem, Pattern::kRandom, random_);
  const auto want = RunKernel(kernel, product, HostTarget());
  ASSERT_THAT(want, IsOk());
  const DerivedOperand derived = kernel.derived(problem, mma::Operand::kB).value();
  ASSERT_GT(derived.bytes, 0);
  const int64_t workspace_bytes = kernel.workspace_bytes(problem).value();
  for (const bool is_made : {false, true}) {
    static std::vector<std::byte> form;
    form.resize(static_cast<size_t>(derived.bytes) + 64);
    std::byte* const at = form.data() + (64 - reinterpret_cast<uintptr_t>(form.data()) % 64);
    std::vector<std::byte> workspace(static_cast<size_t>(workspace_bytes) + 64);
    std::byte* const first =
        workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64);
    std::vector<std::byte> d(want->size());
    ASSERT_THAT(kernel.launch({.problem = problem,
                               .target = HostTarget(),
                               .a = product.a.data(),
                               .b = is_made ? nullptr : product.b.data(),
                               .c = nullptr,
                               .bias = nullptr,
                               .a_scale = {},
                               .b_scale = {},
                               .d = d.data(),
                               .workspace = {first, static_cast<size_t>(workspace_bytes)},
                               .b_form = {.bytes = at, .is_made = is_made}}),
                IsOk());
    EXPECT_TRUE(d == *want);
  }
  problem.b_scale = ScaleKind::kBlocks;
  problem.b_blocks = {.lines = 1, .depth = 8};
  EXPECT_EQ(kernel.derived(problem, mma::Operand::kB).value().bytes, 0);
}

// Elements of D are recomputed as they were computed, and an error of one bit is found.
TEST_F(DequantizeTest, IsChecked) {
  SCOPED_TRACE(random_.trace());
  for (const std::string_view name :
       {"onednn.f32.bf16.bf16.via_f32", "wgmma.m64n256k16.f32.bf16.bf16"}) {
    const Kernel& kernel = NamedKernel(name);
    Problem problem = ProblemOf(kernel, kBf16, kS4, 12, 11, 50, DrawLayouts());
    problem.b_scale = ScaleKind::kBlocks;
    problem.b_blocks = {.lines = 3, .depth = 16, .per_matrix = true};
    const Product product = FillCase(problem, Pattern::kRandom, random_);
    std::vector<std::byte> d = RunKernel(kernel, product, TargetOf(kernel)).value();
    const std::array<int64_t, 3> lines = {0, 4, 10};
    const auto check = [&] {
      verify::CheckResult result;
      EXPECT_THAT(verify::Recompute({.kernel = kernel,
                                     .target = TargetOf(kernel),
                                     .problem = problem,
                                     .a = product.a,
                                     .b = product.b,
                                     .c = {},
                                     .bias = {},
                                     .a_scale = {},
                                     .b_scale = {},
                                     .d = d,
                                     .b_factors = product.b_factors},
                                    problem.batch - 1, lines, lines, result),
                  IsOk());
      return result;
    };
    EXPECT_EQ(check().end, verify::CheckEnd::kPassed) << name;
    EXPECT_EQ(check().elements_checked, 9);
    const int64_t at = (problem.batch - 1) * problem.d.batch_stride_bytes +
                       4 * problem.d.line_stride_bytes() + 10 * 4;
    d[static_cast<size_t>(at + 2)] ^= std::byte{0x40};
    EXPECT_EQ(check().wrong_elements, 1) << name;
  }
}

TEST_F(DequantizeTest, RefusesHostileSizes) {
  Problem problem = TypedProblem(kS4, kBf16);
  problem.m = int64_t{1} << 40;
  problem.a = TightLayout("a", kS4, Order::kRowMajor, problem.m, 1 << 23).value();
  EXPECT_THAT(DequantizationOf(problem, kBf16),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("2^63")));
  constexpr int64_t kMost = INT64_MAX;
  problem.m = 1;
  problem.k = kMost;
  problem.a = TightLayout("a", kS4, Order::kRowMajor, 1, kMost).value();
  EXPECT_THAT(DequantizationOf(problem, kBf16),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("2^63")));
}

}  // namespace
}  // namespace gemmd
