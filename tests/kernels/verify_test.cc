// SPDX-License-Identifier: Apache-2.0
//
// Checks of computed products find every fault and nothing else. gemmd-verify-figures
// measures the same over long runs.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/verify/checksum.h"
#include "kernels/verify/element_bound.h"
#include "kernels/verify/recompute.h"
#include "kernels/verify/sampled.h"
#include "tests/kernels/reference.h"
#include "tests/kernels/verify_figures.h"

namespace gemmd {
namespace {

using verify::CheckEnd;
using verify::CheckResult;

constexpr std::string_view kMmaF16 = "mma.m16n8k16.f32.f16.f16.f32";
constexpr std::string_view kSparseF16 = "mma.sp.m16n8k32.f32.f16.f16.f32";
constexpr std::string_view kSparseS8 = "mma.sp.m16n8k64.s32.s8.s8.s32";
constexpr std::string_view kF32Library = "openblas.f32.f32.f32";

std::vector<std::byte> Computed(const Kernel& kernel, const Product& product) {
  return RunKernel(kernel, product, TargetOf(kernel)).value();
}

// Every kind of fault in every place. A check of the whole D finds all faults of integers, and all
// those above rounding.
TEST(VerifyTest, FindsEachKindOfFault) {
  constexpr FaultyCase kCases[] = {
      {.kernel = "mma.m16n8k32.s32.s8.s8.s32", .d = ElementType::kS32},
      {.kernel = kSparseS8, .d = ElementType::kS32, .is_sparse = true},
      {.kernel = "mma.m16n8k32.s32.s8.s8.s32", .d = ElementType::kS8, .has_epilogue = true},
      {.kernel = kMmaF16, .d = ElementType::kF32, .has_epilogue = true},
      {.kernel = kMmaF16, .d = ElementType::kF16, .activation = Activation::kGeluTanh},
      {.kernel = "mma.m16n8k32.f32.e4m3.e4m3.f32", .d = ElementType::kE4m3},
      {.kernel = kF32Library, .d = ElementType::kF32},
      {.kernel = kF32Library, .d = ElementType::kF32, .activation = Activation::kSilu}};
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const FaultyCase& of : kCases) {
    const bool is_summed = of.activation == Activation::kNone && BitsOf(of.d) > 8;
    for (const FaultKind kind : kAllFaults) {
      FaultFigures all;
      for (const FaultAt at : kAllPlaces) {
        if (!IsPossible(at, kind)) continue;
        SCOPED_TRACE(std::string(of.kernel) + " D " + std::string(NameOf(of.d)) + ", " +
                     std::string(NameOf(kind)) + " in " + std::string(NameOf(at)));
        const FaultFigures figures = CountFound(of, at, kind, RandomSource::Cases(12), random);
        EXPECT_EQ(figures.whole.above_found, figures.whole.above);
        EXPECT_EQ(figures.sums.above_found, figures.sums.above);
        EXPECT_EQ(figures.sums.faults, is_summed ? figures.whole.faults : 0);
        if (IsInteger(of.d)) {
          EXPECT_EQ(figures.whole.found, figures.whole.faults);
          EXPECT_EQ(figures.sums.found, figures.sums.faults);
        }
        all.whole.above += figures.whole.above;
        all.sums.above += figures.sums.above;
      }
      EXPECT_GT(all.whole.above, 5) << of.kernel << " " << NameOf(kind);
      if (is_summed) {
        EXPECT_GT(all.sums.above, 3) << of.kernel << " " << NameOf(kind);
      }
    }
  }
}

// Flips of the highest bit in two elements of a row add up to 0 modulo 2^32.
TEST(VerifyTest, SumsBeyond32BitsFindEvenNumbersOfErrorsInARow) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  constexpr FaultyCase kLong = {
      .kernel = "openblas.s32.u8.u8.via_f64", .d = ElementType::kS32, .m = 4, .n = 4, .k = 33'056};
  const Kernel& kernel = KernelNamed(kLong.kernel);
  const Product product = RandomProduct(kLong, random);
  EXPECT_EQ(verify::SumPasses(kernel, product.problem), 4);
  EXPECT_EQ(verify::SumPasses(
                kernel, RandomProduct({.kernel = kLong.kernel, .d = kLong.d}, random).problem),
            1);
  const std::vector<std::byte> d = Computed(kernel, product);
  verify::Draw draw(random.Bits());
  const auto check = [&](const std::vector<std::byte>& result) {
    return verify::CheckSums(ProductToCheck(kernel, TargetOf(kernel), product, result), draw)
        .value();
  };
  EXPECT_EQ(check(d).end, CheckEnd::kPassed);
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> wrong = d;
    for (const size_t element : {5, 7}) wrong[element * 4 + 3] ^= std::byte{0x80};
    const CheckResult result = check(wrong);
    ASSERT_EQ(result.end, CheckEnd::kWrong);
    EXPECT_EQ(result.wrong->row, 1);
    EXPECT_EQ(result.suspicions, 1);
  }
}

TEST(VerifyTest, AnUlpIsTheDistanceToTheNextMagnitude) {
  EXPECT_EQ(UlpAt(ElementType::kS32, -5), 1);
  EXPECT_EQ(UlpAt(ElementType::kF64, -8), 0x1p-49);
  EXPECT_EQ(UlpAt(ElementType::kF32, 1), 0x1p-23);
  EXPECT_EQ(UlpAt(ElementType::kF32, 0), 0x1p-149);
  EXPECT_EQ(UlpAt(ElementType::kF16, 1.5), 0x1p-10);
  EXPECT_EQ(UlpAt(ElementType::kF16, 65504), 32);
  EXPECT_EQ(UlpAt(ElementType::kBf16, 0.75), 0x1p-8);
  EXPECT_EQ(UlpAt(ElementType::kE4m3, 448), 32);
}

TEST(VerifyTest, SaysTheSmallestChangeThatSumsFound) {
  RandomSource random;
  for (const std::string_view name : {kMmaF16, kF32Library}) {
    const FaultFigures figures =
        CountFound({.kernel = name}, FaultAt::kResult, FaultKind::kOneBit, 100, random);
    EXPECT_GT(figures.sums.above, 10) << name;
    EXPECT_EQ(figures.large_found, figures.large) << name;
    // Half where a flip leads to the next smaller power of two, in which elements are twice as
    // dense.
    EXPECT_GE(figures.least_found_ulp, 0.5) << name;
    EXPECT_TRUE(std::isfinite(figures.least_found_ulp)) << name;
    EXPECT_GT(figures.least_found, 0) << name;
  }
  const FaultFigures integers =
      CountFound({.kernel = "mma.m16n8k32.s32.s8.s8.s32", .d = ElementType::kS32}, FaultAt::kResult,
                 FaultKind::kOneBit, 100, random);
  EXPECT_GT(integers.sums.faults, 70);
  EXPECT_GE(integers.least_found, 1);
  EXPECT_EQ(integers.least_found_ulp, integers.least_found);
}

TEST(VerifyTest, SamplesAsItsFormulaPredicts) {
  RandomSource random;
  for (const double rate : {1.0 / 64, 1.0 / 4}) {
    const SampleFigures figures = CountFoundBySample(KernelNamed(kMmaF16), 400, rate, random);
    EXPECT_TRUE(IsAsPredicted(figures))
        << figures.found << " of " << figures.flips << ", each with " << figures.predicted;
    if (rate < 0.1) continue;
    // The bound can fail: three times the probability is outside it.
    SampleFigures wrong = figures;
    wrong.predicted *= 3;
    EXPECT_FALSE(IsAsPredicted(wrong));
  }
}

TEST(VerifyTest, RefusesNothingThatIsRight) {
  RandomSource random;
  for (const Operands operands : {Operands::kUsual, Operands::kChosen}) {
    const int64_t products = RandomSource::Cases(200);
    const CleanFigures figures = CountRefused(products, operands, random);
    EXPECT_EQ(figures.refused, 0);
    EXPECT_GT(figures.sparse, 0);
    EXPECT_LT(figures.not_verified, products);  // Of up to two checks each.
  }
}

// One bit of D, or of the values of A before the product: a whole sample finds each one that
// changes D, and sums find those above rounding, and all of them in integers.
TEST(VerifyTest, FindsWhatIsWrongWhereAIsSparse) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  struct Row {
    std::string_view kernel;
    ElementType d;
  };
  constexpr Row kRows[] = {{kSparseF16, ElementType::kF32},
                           {kSparseS8, ElementType::kS32},
                           {kF32Library, ElementType::kF32}};
  for (const Row& row : kRows) {
    SCOPED_TRACE(std::string(row.kernel));
    const Kernel& kernel = KernelNamed(row.kernel);
    const FaultyCase shape = {
        .kernel = row.kernel, .d = row.d, .m = 20, .n = 24, .k = 64, .is_sparse = true};
    for (const FaultAt at : kAllPlaces) {
      const Found found = CountFound(shape, at, FaultKind::kOneBit, 60, random).sums;
      EXPECT_EQ(found.above_found, found.above) << NameOf(at);
      const int64_t least = row.d == ElementType::kS32 ? found.faults : 0;
      EXPECT_GE(found.found, least) << NameOf(at);
    }
    Product dense = RandomProduct(shape, random);
    const Product product = WithSparseA(dense);
    const std::vector<std::byte> d = Computed(kernel, product);
    verify::Draw draw(random.Bits());
    for (int i = 0; i < 20; ++i) {
      std::vector<std::byte> flipped = d;
      // The highest bit of the exponent, which exceeds any bound.
      const auto element = static_cast<size_t>(random.Between(0, shape.m * shape.n - 1));
      flipped[element * 4 + 3] ^= std::byte{0x40};
      const CheckResult result =
          verify::CheckSample(ProductToCheck(kernel, TargetOf(kernel), product, flipped), 1, draw)
              .value();
      EXPECT_EQ(result.wrong_elements, 1);
    }
  }
}

TEST(VerifyTest, AWholeSampleFindsAnyFlipAndSaysWhere) {
  RandomSource random;
  const Kernel& kernel = KernelNamed(kMmaF16);
  const Product product = RandomProduct({.kernel = kMmaF16, .m = 17, .n = 19, .k = 33}, random);
  std::vector<std::byte> d = Computed(kernel, product);
  const uint64_t before = LoadBits(ElementType::kF32, d.data(), 5 * 19 + 7);
  d[(5 * 19 + 7) * 4] ^= std::byte{1};  // The last bit.
  verify::Draw draw(random.Bits());
  const CheckResult result =
      verify::CheckSample(ProductToCheck(kernel, TargetOf(kernel), product, d), 1, draw).value();
  ASSERT_EQ(result.end, CheckEnd::kWrong);
  EXPECT_EQ(result.elements_checked, 17 * 19);
  EXPECT_EQ(result.wrong_elements, 1);
  EXPECT_EQ(result.wrong->row, 5);
  EXPECT_EQ(result.wrong->column, 7);
  EXPECT_EQ(result.wrong->want_bits, before);
  EXPECT_EQ(result.wrong->got_bits, before ^ 1);
  EXPECT_EQ(result.miss_probability, 0);
  EXPECT_EQ(result.cost, 1);
}

// A GPU's rows are compared with the simulator of their instruction.
TEST(VerifyTest, AGpusRowIsHeldAgainstTheSimulator) {
  RandomSource random;
  const Kernel& simulated = KernelNamed(kMmaF16);
  const Product product = RandomProduct({.kernel = kMmaF16}, random);
  const std::vector<std::byte> d = Computed(simulated, product);
  for (const Kernel& kernel : Catalog(DeviceKind::kCuda)) {
    if (*kernel.instruction != *simulated.instruction) continue;
    verify::Draw draw(random.Bits());
    const CheckResult result =
        verify::CheckSample(
            ProductToCheck(kernel, {.kind = DeviceKind::kCuda, .chip = mma::Chip::kSm90}, product,
                           d),
            1, draw)
            .value();
    EXPECT_EQ(result.end, CheckEnd::kPassed) << kernel.name;
    return;
  }
  FAIL() << "no kernel of a GPU has the instruction";
}

// No rounding in the epilogue turns an infinite sum into anything else.
TEST(VerifyTest, AnInfiniteSumIsHeldToItself) {
  const Kernel& kernel = KernelNamed(kF32Library);
  Problem problem = MakeProblem(kernel, 8, 8, 8, {});
  problem.alpha = -0.5;
  DotProduct dot;
  AddProduct(1, 2, dot);
  AddProduct(std::numeric_limits<double>::infinity(), 2, dot);
  const BoundedElement element = verify::BoundOf(kernel.recipe, problem, dot, {});
  ASSERT_TRUE(element.is_decidable);
  uint64_t nearest = 0;
  EXPECT_TRUE(verify::IsWithin(ElementType::kF32, 0xff80'0000, element, nearest));
  EXPECT_FALSE(verify::IsWithin(ElementType::kF32, 0x7f80'0000, element, nearest));
  EXPECT_FALSE(verify::IsWithin(ElementType::kF32, 0xff7f'ffff, element, nearest));
  EXPECT_FALSE(verify::IsWithin(ElementType::kF32, 0x7fc0'0000, element, nearest));
  EXPECT_EQ(nearest, 0xff80'0000);
}

// The epilogue multiplies two scales first, and their product may be smaller or larger than any
// number of its type while the element is not.
TEST(VerifyTest, ScalesMayLeaveTheRangeOfTheEpilogue) {
  const Kernel& kernel = KernelNamed(kF32Library);
  Problem problem = MakeProblem(kernel, 8, 8, 8, {});
  problem.a_scale = problem.b_scale = ScaleKind::kVector;
  verify::EpilogueTerms terms = {.a_scale = 0x1p-100, .b_scale = 0x1p-100};
  DotProduct dot;
  AddProduct(0x1p60, 0x1p60, dot);
  const auto bound = [&] { return verify::BoundOf(kernel.recipe, problem, dot, terms); };
  // 2^120 times a factor of 0 or 2^-200.
  for (const double right : {0.0, 0x1p-80}) {
    EXPECT_TRUE(bound().is_decidable);
    EXPECT_TRUE(IsConversionOf(ElementType::kF32, right, bound())) << right;
  }
  EXPECT_FALSE(IsConversionOf(ElementType::kF32, 0x1p-5, bound()));
  dot = {};
  AddProduct(0x1p-60, 0x1p-60, dot);
  terms = {.a_scale = 0x1p100, .b_scale = 0x1p100};
  EXPECT_FALSE(bound().is_decidable);
  terms = {.a_scale = 0x1p100, .b_scale = 0x1p20};
  EXPECT_TRUE(bound().is_decidable);
  EXPECT_FALSE(IsConversionOf(ElementType::kF32, std::numeric_limits<double>::infinity(), bound()));
}

// Beta times C is rounded before it is added: it may be infinite while the element is not, and
// together with an infinite sum it may be NaN.
TEST(VerifyTest, TermsMayLeaveTheRangeOfTheEpilogue) {
  const Kernel& kernel = KernelNamed(kF32Library);
  Problem problem = MakeProblem(kernel, 8, 8, 8, {});
  problem.beta = 0x1p127;
  const auto is_decidable = [&](double sum, double c) {
    DotProduct dot;
    AddProduct(sum, 1, dot);
    return verify::BoundOf(kernel.recipe, problem, dot, {.c = c}).is_decidable;
  };
  EXPECT_TRUE(is_decidable(-0x1p125, 1.5));
  EXPECT_FALSE(is_decidable(-0x1p126, 2));
  EXPECT_FALSE(is_decidable(-std::numeric_limits<double>::infinity(), 2));
  EXPECT_TRUE(is_decidable(-std::numeric_limits<double>::infinity(), 1));
  // A bias of f64, too.
  problem.beta = 0;
  problem.bias_axis = BiasAxis::kRows;
  DotProduct dot;
  AddProduct(1, 1, dot);
  EXPECT_FALSE(verify::BoundOf(kernel.recipe, problem, dot, {.bias = 0x1p200}).is_decidable);

  // A right product.
  problem = MakeProblem(kernel, 1, 1, 1, {});
  problem.beta = 0x1p127;
  problem.c = TightLayout("c", ElementType::kF32, Order::kRowMajor, 1, 1).value();
  RandomSource random;
  Product product = FillCase(problem, Pattern::kRandom, random);
  StoreBits(ElementType::kF32, product.a.data(), 0, Encode(ElementType::kF32, -0x1p126));
  StoreBits(ElementType::kF32, product.b.data(), 0, Encode(ElementType::kF32, 1));
  StoreBits(ElementType::kF32, product.c.data(), 0, Encode(ElementType::kF32, 2));
  const std::vector<std::byte> d = Computed(kernel, product);
  verify::Draw draw(random.Bits());
  const CheckResult result =
      verify::CheckSample(ProductToCheck(kernel, TargetOf(kernel), product, d), 1, draw).value();
  EXPECT_EQ(result.end, CheckEnd::kNotVerified);
}

TEST(VerifyTest, AnInfinityInTheResultAloneIsWrong) {
  RandomSource random;
  const Kernel& kernel = KernelNamed(kF32Library);
  Product product = RandomProduct({.kernel = kF32Library}, random);
  std::vector<std::byte> d = Computed(kernel, product);
  verify::Draw draw(random.Bits());
  StoreBits(ElementType::kF32, d.data(), 3, 0x7f80'0000);
  EXPECT_EQ(verify::CheckSums(ProductToCheck(kernel, TargetOf(kernel), product, d), draw)->end,
            CheckEnd::kWrong);
}

TEST(VerifyTest, AnInfinityInAnOperandLeavesTheSumsUnverified) {
  RandomSource random;
  const Kernel& kernel = KernelNamed(kF32Library);
  Product product = RandomProduct({.kernel = kF32Library}, random);
  StoreBits(ElementType::kF32, product.b.data(), 3, 0x7f80'0000);
  const std::vector<std::byte> d = Computed(kernel, product);
  verify::Draw draw(random.Bits());
  const CheckResult result =
      verify::CheckSums(ProductToCheck(kernel, TargetOf(kernel), product, d), draw).value();
  EXPECT_EQ(result.end, CheckEnd::kNotVerified);
  EXPECT_EQ(result.reason, "nonfinite");
  EXPECT_EQ(result.miss_probability, 1);
}

// Large terms that cancel have larger rounding errors than D's size explains: rows are then
// computed again, and nothing right is called wrong.
TEST(VerifyTest, CancellationIsComputedAgain) {
  RandomSource random;
  const Kernel& kernel = KernelNamed(kMmaF16);
  const Problem problem = MakeProblem(kernel, 24, 24, 512, {});
  Product product = FillCase(problem, Pattern::kRandom, random);
  const auto set = [&](std::vector<std::byte>& bytes, int64_t line_step, int64_t step,
                       double sign) {
    for (int64_t line = 0; line < 24; ++line) {
      for (int64_t p = 0; p < 512; ++p) {
        const double value = (p < 256 ? 1.0 : sign) * (30 + std::fabs(random.Normal()));
        StoreBits(ElementType::kF16, bytes.data(), line * line_step + p * step,
                  Encode(ElementType::kF16, value));
      }
    }
  };
  set(product.a, 512, 1, -1);
  set(product.b, 1, 24, 1);
  const std::vector<std::byte> d = Computed(kernel, product);
  verify::Draw draw(random.Bits());
  const CheckResult result =
      verify::CheckSums(ProductToCheck(kernel, TargetOf(kernel), product, d), draw).value();
  EXPECT_NE(result.end, CheckEnd::kWrong);
}

// Wrong sums of a right product would not make it wrong, but each row would be computed again.
TEST(VerifyTest, SumsExpectEachScaleAndBias) {
  RandomSource random;
  const Kernel& kernel = KernelNamed("mma.m16n8k32.f32.e4m3.e4m3.f32");
  Problem problem = MakeProblem(kernel, 24, 20, 16, {});
  problem.alpha = 0.75;
  problem.a_scale = problem.b_scale = ScaleKind::kVector;
  problem.bias_type = ElementType::kF32;
  for (const BiasAxis axis : {BiasAxis::kRows, BiasAxis::kColumns}) {
    problem.bias_axis = axis;
    const Product product = FillCase(problem, Pattern::kRandom, random);
    const std::vector<std::byte> d = Computed(kernel, product);
    verify::Draw draw(random.Bits());
    const CheckResult result =
        verify::CheckSums(ProductToCheck(kernel, TargetOf(kernel), product, d), draw).value();
    EXPECT_EQ(result.end, CheckEnd::kPassed);
    EXPECT_EQ(result.suspicions, 0);
  }
}

TEST(VerifyTest, SaysWhatSumsCannotCheck) {
  const Kernel& kernel = KernelNamed(kMmaF16);
  Problem problem = MakeProblem(kernel, 8, 8, 8, {});
  EXPECT_TRUE(verify::CanCheckSums(kernel, problem).ok());
  problem.activation = Activation::kRelu;
  EXPECT_EQ(verify::CanCheckSums(kernel, problem).message(),
            "verify.mode: got checksum with an activation, want none");
  problem.activation = Activation::kNone;
  problem.a_scale = ScaleKind::kBlocks;
  EXPECT_EQ(verify::CanCheckSums(kernel, problem).message(),
            "verify.mode: got checksum with factors of blocks, want none: sampled and duplicate "
            "check such products");
  const Kernel& bits = KernelNamed("mma.m16n8k256.s32.b1.b1.s32.xor.popc");
  Problem counted = MakeProblem(bits, 8, 8, 256, {});
  counted.bit_operation = BitOperation::kXor;
  EXPECT_EQ(verify::CanCheckSums(bits, counted).message(),
            "verify.mode: got checksum with xor, want and");
  const Kernel& integers = KernelNamed("mma.m16n8k32.s32.s8.s8.s32");
  Problem scaled = MakeProblem(integers, 8, 8, 8, {});
  scaled.alpha = 2;
  EXPECT_TRUE(absl::IsUnimplemented(verify::CanCheckSums(integers, scaled)));
}

TEST(VerifyTest, DuplicatesAreComparedBitByBit) {
  RandomSource random;
  const Kernel& kernel = KernelNamed(kMmaF16);
  const Product product = RandomProduct({.kernel = kMmaF16}, random);
  const std::vector<std::byte> d = Computed(kernel, product);
  std::vector<std::byte> again = d;
  EXPECT_EQ(verify::CompareResults(product.problem, d, again).end, CheckEnd::kPassed);
  again[4 * 50] ^= std::byte{4};
  const CheckResult result = verify::CompareResults(product.problem, d, again);
  EXPECT_EQ(result.end, CheckEnd::kWrong);
  EXPECT_EQ(result.wrong->row, 50 / 48);
  EXPECT_EQ(result.wrong->column, 50 % 48);
}

TEST(VerifyTest, EndsWhenItIsAborted) {
  RandomSource random;
  const Kernel& kernel = KernelNamed(kF32Library);
  const Product product = RandomProduct({.kernel = kF32Library}, random);
  const std::vector<std::byte> d = Computed(kernel, product);
  const std::atomic<bool> abort = true;
  verify::CheckedProduct checked = ProductToCheck(kernel, TargetOf(kernel), product, d);
  checked.abort = &abort;
  verify::Draw draw(random.Bits());
  EXPECT_TRUE(absl::IsCancelled(verify::CheckSample(checked, 1, draw).status()));
  EXPECT_TRUE(absl::IsCancelled(verify::CheckSums(checked, draw).status()));
}

// How many slices a check of a right product has.
int64_t SlicesOf(verify::SlicedCheck& check) {
  int64_t slices = 1;
  while (!check.Continue().value()) ++slices;
  EXPECT_EQ(check.result().end, CheckEnd::kPassed);
  return slices;
}

// However large a product is, a slice does at most twice the work that is planned for it.
TEST(VerifyTest, SlicesOfLongChecksAreShort) {
  RandomSource random;
  verify::Draw draw(random.Bits());
  struct Case {
    FaultyCase of;
    bool is_of_sums;
    int64_t least;
  };
  const Case kCases[] = {
      // 2^25 multiplications, 2^23 in half of a slice.
      {{.kernel = kF32Library, .m = 64, .n = 64, .k = 8192}, false, 3},
      {{.kernel = kMmaF16, .m = 40, .n = 48, .k = 64}, false, 1},
      // 2^24 elements for the sums of rows and as many for those of columns, 2^23 in a slice.
      {{.kernel = kF32Library, .m = 2048, .n = 2, .k = 8192}, true, 4},
      {{.kernel = "openblas.s32.s8.s8.via_f64",
        .d = ElementType::kS32,
        .m = 2,
        .n = 8192,
        .k = 2048},
       true,
       2},
      {{.kernel = kF32Library}, true, 1}};
  for (const Case& c : kCases) {
    SCOPED_TRACE(std::string(c.of.kernel) + (c.is_of_sums ? " sums" : " sample"));
    const Kernel& kernel = KernelNamed(c.of.kernel);
    const Product product = RandomProduct(c.of, random);
    const std::vector<std::byte> d = Computed(kernel, product);
    const verify::CheckedProduct checked = ProductToCheck(kernel, TargetOf(kernel), product, d);
    const int64_t slices = SlicesOf(c.is_of_sums ? *verify::StartSums(checked, draw)
                                                 : *verify::StartSample(checked, 1, draw));
    EXPECT_GE(slices, c.least);
    EXPECT_LE(slices, 3 * c.least);
  }
}

// The default draws one element of each whole tile, and reports its miss probability.
TEST(VerifyTest, PlansASample) {
  const Problem problem = MakeProblem(KernelNamed(kMmaF16), 4096, 4096, 4096, {});
  const verify::SamplePlan plan = verify::PlanSample(problem, verify::kDefaultRate);
  EXPECT_EQ(plan.rows, 32);
  EXPECT_EQ(plan.columns, 32);
  EXPECT_DOUBLE_EQ(plan.miss_probability, 1 - 1.0 / 16384);
  EXPECT_DOUBLE_EQ(plan.cost, 1.0 / 16384);
  // A stripe that is not whole has its line too.
  EXPECT_EQ(verify::PlanSample(MakeProblem(KernelNamed(kMmaF16), 129, 7, 8, {}), 1e-6).rows, 2);
  EXPECT_EQ(verify::PlanSample(problem, 1).miss_probability, 0);
}

}  // namespace
}  // namespace gemmd
