// SPDX-License-Identifier: Apache-2.0
//
// The sums of each chip as known from other sources, checked by probes.
#include <gtest/gtest.h>

#include <bit>
#include <cctype>
#include <cmath>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/matrix/element.h"
#include "kernels/mma/arithmetic.h"
#include "kernels/mma/chip.h"
#include "kernels/mma/instructions.h"
#include "tests/kernels/sim/dot_rig.h"

namespace gemmd {
namespace {

using mma::Algorithm;
using mma::Arithmetic;
using mma::Chip;

enum class Rounding : uint8_t { kTowardZero, kToNearest };

// What is known about the sums of one instruction on one chip. None of it comes from the
// simulator's own tables: probes of single results must find the same.
struct KnownSums {
  Chip chip;
  std::string_view instruction;
  int together;  // Products that are added at once.
  int kept;      // Bits below the largest exponent that a term keeps.
  int stored;    // Fraction bits of D.
  Rounding rounding;
  int floor = 0;  // The smallest exponent to which terms are aligned; 0 if products do not reach
                  // it.
  int third = 2;  // The next product that is added together with the first two.
};

void PrintTo(const KnownSums& known, std::ostream* out) {
  *out << std::string(known.instruction) << " on " << std::string(mma::NameOf(known.chip));
}

constexpr Rounding kZero = Rounding::kTowardZero;
constexpr Rounding kNearest = Rounding::kToNearest;

// Sources: bits kept and products added at once, for sm_70, sm_80, sm_86, sm_89 and sm_90 also
// found in the outputs of such chips that the universities of Leeds and Manchester published: Fasi,
// Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021); Khattak and
// Mikaitis, "Accurate models of NVIDIA tensor cores", which also has the floors; MMA-Sim (arXiv
// 2511.10909), which alone has sm_75 and sm_120. fp8 of mma.sync on sm_90 and sm_100 is emulated
// with the f16 instructions that ptxas 13.0 emits.
constexpr KnownSums kKnownSums[] = {
    {Chip::kSm70, "mma.m8n8k4.row.col.f32.f16.f16.f32", 4, 23, 23, kZero},
    {Chip::kSm70, "mma.m8n8k4.row.col.f32.f16.f16.f16", 4, 23, 23, kZero},
    {Chip::kSm70, "mma.m8n8k4.row.col.f16.f16.f16.f16", 4, 23, 10, kNearest, -19},
    {Chip::kSm70, "wmma.m16n16k16.row.col.f32.f16.f16.f32", 4, 23, 23, kZero},
    {Chip::kSm75, "mma.m8n8k4.row.col.f32.f16.f16.f32", 4, 24, 23, kZero},
    {Chip::kSm75, "mma.m16n8k8.f32.f16.f16.f32", 8, 24, 23, kZero},
    {Chip::kSm75, "mma.m16n8k8.f16.f16.f16.f16", 8, 24, 10, kNearest, -20},
    {Chip::kSm75, "wmma.m16n16k16.row.col.f16.f16.f16.f16", 8, 24, 10, kNearest, -20},
    {Chip::kSm80, "mma.m16n8k8.f32.f16.f16.f32", 8, 24, 23, kZero},
    {Chip::kSm80, "mma.m16n8k16.f32.f16.f16.f32", 8, 24, 23, kZero},
    {Chip::kSm80, "mma.m16n8k16.f16.f16.f16.f16", 8, 24, 10, kNearest, -20},
    {Chip::kSm80, "mma.m16n8k16.f32.bf16.bf16.f32", 8, 24, 23, kZero, -132},
    {Chip::kSm86, "mma.m16n8k16.f32.bf16.bf16.f32", 8, 24, 23, kZero, -132},
    {Chip::kSm80, "mma.m16n8k4.f32.tf32.tf32.f32", 4, 24, 23, kZero, -132},
    {Chip::kSm80, "mma.m16n8k8.f32.tf32.tf32.f32", 4, 24, 23, kZero, -132},
    {Chip::kSm80, "wmma.m16n16k8.row.col.f32.tf32.tf32.f32", 4, 24, 23, kZero, -132},
    {Chip::kSm89, "mma.m16n8k16.f32.f16.f16.f32", 8, 24, 23, kZero},
    {Chip::kSm89, "mma.m16n8k16.f32.bf16.bf16.f32", 8, 24, 23, kZero, -132},
    {Chip::kSm89, "mma.m16n8k16.f32.e4m3.e5m2.f32", 16, 13, 13, kZero},
    {Chip::kSm89, "mma.m16n8k32.f32.e4m3.e4m3.f32", 16, 13, 13, kZero},
    {Chip::kSm89, "mma.m16n8k32.f16.e5m2.e5m2.f16", 16, 13, 10, kNearest},
    {Chip::kSm90, "mma.m16n8k8.f32.bf16.bf16.f32", 8, 25, 23, kZero, -133},
    {Chip::kSm90, "mma.m16n8k16.f32.f16.f16.f32", 16, 25, 23, kZero},
    {Chip::kSm90, "mma.m16n8k16.f16.f16.f16.f16", 16, 25, 10, kNearest, -21},
    {Chip::kSm90, "mma.m16n8k4.f32.tf32.tf32.f32", 4, 25, 23, kZero, -133},
    {Chip::kSm90, "mma.m16n8k8.f32.tf32.tf32.f32", 8, 25, 23, kZero, -133},
    {Chip::kSm90, "wmma.m16n16k8.row.col.f32.tf32.tf32.f32", 4, 25, 23, kZero, -133},
    {Chip::kSm90, "wmma.m16n16k16.row.col.f16.f16.f16.f32", 16, 25, 10, kNearest},
    {Chip::kSm90, "mma.sp.m16n8k32.f32.f16.f16.f32", 16, 25, 23, kZero},
    {Chip::kSm90, "mma.sp.m16n8k8.f32.tf32.tf32.f32", 4, 25, 23, kZero, -133},
    {Chip::kSm90, "wgmma.m64n8k16.f32.f16.f16", 16, 25, 23, kZero},
    {Chip::kSm90, "wgmma.m64n8k8.f32.tf32.tf32", 8, 25, 23, kZero, -133},
    {Chip::kSm90, "wgmma.sp.m64n8k16.f32.tf32.tf32", 8, 25, 23, kZero, -133},
    {Chip::kSm90, "wgmma.m64n8k32.f32.e4m3.e4m3", 32, 13, 13, kZero},
    {Chip::kSm90, "wgmma.sp.m64n8k64.f32.e5m2.e4m3", 32, 13, 13, kZero},
    {Chip::kSm90, "wgmma.m64n8k32.f16.e4m3.e4m3", 32, 13, 10, kNearest},
    {Chip::kSm90, "mma.m16n8k32.f32.e4m3.e4m3.f32", 16, 25, 23, kZero, 0, 4},
    {Chip::kSm90, "mma.m16n8k16.f16.e4m3.e4m3.f16", 8, 25, 10, kNearest, 0, 4},
    {Chip::kSm90, "mma.sp.m16n8k64.f32.e4m3.e4m3.f32", 16, 25, 23, kZero, 0, 4},
    {Chip::kSm100, "mma.m16n8k16.f32.bf16.bf16.f32", 16, 25, 23, kZero, -133},
    {Chip::kSm100, "mma.m16n8k8.f32.tf32.tf32.f32", 8, 25, 23, kZero, -133},
    {Chip::kSm100, "mma.m16n8k32.f32.e4m3.e4m3.f32", 16, 25, 23, kZero, 0, 4},
    {Chip::kSm120, "mma.m16n8k16.f32.f16.f16.f32", 16, 25, 23, kZero},
    {Chip::kSm120, "mma.m16n8k32.f32.e4m3.e4m3.f32", 32, 25, 23, kZero},
    {Chip::kSm120, "mma.m16n8k32.kind::f8f6f4.f16.e2m1.e3m2.f16", 32, 25, 10, kNearest},
};

double Power(int exponent) { return std::ldexp(1.0, exponent); }

// Asks the simulator for single results of one instruction on one chip.
class Probe {
 public:
  Probe(std::string_view instruction, Chip chip) : rig_(instruction, chip) {
    while (!Split(Power(top_)).has_value()) --top_;
  }

  size_t depth() const { return rig_.depth(); }

  // Whether 2^-j of the largest term survives: two products cancel, and the third remains.
  bool Keeps(int j, int third) { return Sum({{0, 1}, {1, -1}, {third, Power(-j)}}) == Power(-j); }

  // Whether a product is added together with the first two; `lost` is so small that it is lost
  // beside them.
  bool IsWithTheFirstTwo(int place, double lost) {
    return Sum({{0, 1}, {1, -1}, {place, lost}}) == 0;
  }

  // How many products are added with the first one.
  int Together(double lost) {
    int together = 2;
    for (size_t place = 2; place < depth(); ++place) {
      if (IsWithTheFirstTwo(static_cast<int>(place), lost)) ++together;
    }
    return together;
  }

  // The same if products are too close to each other for that. C is so small that it counts in a
  // sum with the first product, but not in what is stored of that sum between two blocks.
  int TogetherWithC(double little) {
    int together = 1;
    for (size_t place = 1; place < depth(); ++place) {
      const double sum = Sum({{0, 1}, {static_cast<int>(place), -1}, {kC, little}});
      if (sum == little) ++together;
    }
    return together;
  }

  bool Stores(int j, int third) { return Sum({{0, 1}, {third, Power(-j)}}) == 1 + Power(-j); }

  // Halfway between two numbers of `stored` fraction bits, the lower of which is odd.
  Rounding RoundingOf(int stored, int third) {
    const double unit = 2 * Power(-stored);
    const double sum = Sum({{0, 1}, {1, 1}, {third, 1.5 * unit}});
    if (sum == 2 + unit) return Rounding::kTowardZero;
    EXPECT_EQ(sum, 2 + 2 * unit);
    return Rounding::kToNearest;
  }

  // Whether 2^-j changes the smallest sum, as it should: an f32 rounded to zero from 2^-149, an f16
  // to nearest from half of its smallest number.
  bool CountsBelowTheLeast(int j) {
    top_ = 0;
    if (rig_.instruction().d == ElementType::kF16) {
      return Sum({{0, Power(-25)}, {1, Power(-j)}}) == Power(-24);
    }
    return Sum({{0, Power(-149)}, {1, -Power(-j)}}) == 0;
  }

 private:
  static constexpr int kC = -1;

  struct Term {
    int place;     // A product's, or kC.
    double value;  // In units of 2^top_.
  };
  struct Factors {
    double a;
    double b;
  };

  // A product of the operand types that equals the value, with factors as close to each other as
  // possible: a subnormal factor would be aligned as if it were larger.
  std::optional<Factors> Split(double value) const {
    const auto has = [](ElementType type, double x) { return Decode(type, Encode(type, x)) == x; };
    const int half = std::ilogb(value) / 2;
    for (int i = 0; i < 40; ++i) {
      const double b = Power(half + (i % 2 == 0 ? i / 2 : -(i + 1) / 2));
      if (has(rig_.instruction().a, value / b) && has(rig_.instruction().b, b)) {
        return Factors{value / b, b};
      }
    }
    return std::nullopt;
  }

  // The sum in units of 2^top_. A value that no product of the types equals is C, which is added
  // with the first products.
  double Sum(const std::vector<Term>& terms) {
    DotValues values = {std::vector<double>(depth()), std::vector<double>(depth()), 0};
    for (const Term& term : terms) {
      const double value = term.value * Power(top_);
      const std::optional<Factors> factors = term.place == kC ? std::nullopt : Split(value);
      if (factors.has_value()) {
        values.a[static_cast<size_t>(term.place)] = factors->a;
        values.b[static_cast<size_t>(term.place)] = factors->b;
      } else {
        values.c = value;
      }
    }
    const std::optional<Dot> dot = rig_.Encoded(values);
    if (!dot.has_value()) {
      ADD_FAILURE() << "the types of " << Describe(rig_, "the probe") << " do not have its terms";
      return 0;
    }
    return Decode(rig_.instruction().d, rig_.Multiply(*dot)) / Power(top_);
  }

  DotRig rig_;
  int top_ = 8;
};

class KnownSumsTest : public testing::TestWithParam<KnownSums> {
 protected:
  KnownSumsTest() : probe_(GetParam().instruction, GetParam().chip) {}

  Probe probe_;
};

TEST_P(KnownSumsTest, KeepTheseBits) {
  const KnownSums& known = GetParam();
  for (int j = 1; j <= 26; ++j) EXPECT_EQ(probe_.Keeps(j, known.third), j <= known.kept) << j;
}

TEST_P(KnownSumsTest, TakeSoManyProductsAtOnce) {
  const KnownSums& known = GetParam();
  // Products of 4 and 6 bits are too close to each other for any to be lost.
  if (BitsOf(mma::FindInstruction(known.instruction)->b) < 8) {
    EXPECT_EQ(probe_.TogetherWithC(Power(-known.stored - 1)), known.together);
  } else {
    const double lost = Power(-known.kept - 1);
    EXPECT_EQ(probe_.Together(lost), known.together);
    EXPECT_EQ(probe_.IsWithTheFirstTwo(2, lost), known.third == 2);
  }
}

TEST_P(KnownSumsTest, RoundSo) {
  const KnownSums& known = GetParam();
  for (int j = 1; j <= 24; ++j) EXPECT_EQ(probe_.Stores(j, known.third), j <= known.stored) << j;
  EXPECT_EQ(probe_.RoundingOf(known.stored, known.third), known.rounding);
}

TEST_P(KnownSumsTest, AlignToNoLessThanTheFloor) {
  const KnownSums& known = GetParam();
  if (known.floor == 0) return;
  const int last = known.kept - known.floor;
  for (int j = last - 4; j <= last + 2; ++j) {
    EXPECT_EQ(probe_.CountsBelowTheLeast(j), j <= last) << j;
  }
}

INSTANTIATE_TEST_SUITE_P(All, KnownSumsTest, testing::ValuesIn(kKnownSums), [](const auto& row) {
  std::string name = absl::StrCat(std::string(mma::NameOf(row.param.chip)), "_",
                                  std::string(row.param.instruction));
  for (char& letter : name) letter = std::isalnum(letter) != 0 ? letter : '_';
  return name;
});

// Every chip that has them.
TEST(OtherArithmetic, IsExactOrIeee) {
  const double huge = Power(60);
  for (const Chip chip : mma::kAllChips) {
    SCOPED_TRACE(std::string(mma::NameOf(chip)));
    const auto multiply = [chip](std::string_view name, const Dot& dot) -> std::optional<uint64_t> {
      const mma::Support support = mma::SupportOn(*mma::FindInstruction(name), chip);
      if (support == mma::Support::kUnavailable) return std::nullopt;
      return DotRig(name, chip).Multiply(dot);
    };
    const auto all = [](size_t count, uint64_t bits) { return std::vector<uint64_t>(count, bits); };
    const auto expect = [](std::optional<uint64_t> got, uint64_t want) {
      if (got.has_value()) {
        EXPECT_EQ(*got, want);
      }
    };
    expect(multiply("mma.m16n8k32.s32.s8.s8.s32", {all(32, 0x81), all(32, 0x7f), 5}),
           static_cast<uint32_t>(5 - 32 * 127 * 127));
    expect(multiply("mma.m16n8k64.s32.s4.s4.s32", {all(64, 0x9), all(64, 0x7), 5}),
           static_cast<uint32_t>(5 - 64 * 7 * 7));
    expect(multiply("mma.m8n8k128.s32.b1.b1.s32.xor.popc", {all(128, 1), all(128, 0), 5}), 133);
    const std::vector<uint64_t> chain = {
        std::bit_cast<uint64_t>(huge), std::bit_cast<uint64_t>(1.0), std::bit_cast<uint64_t>(-huge),
        std::bit_cast<uint64_t>(1.0)};
    expect(multiply("mma.m16n8k16.f64", {chain, all(4, std::bit_cast<uint64_t>(1.0)), 0}),
           std::bit_cast<uint64_t>(1.0));
    // IEEE keeps the sign of a zero; a fused sum does not.
    const bool is_fused = chip == Chip::kSm70 || chip == Chip::kSm75;
    expect(multiply("mma.m8n8k4.row.col.f16.f16.f16.f16", {all(4, 0x8000), all(4, 0x3c00), 0x8000}),
           is_fused ? 0 : 0x8000);
  }
}

// Blocks divide the products of every instruction, and both halves of an emulated one.
TEST(Arithmetic, BlocksDivideTheProducts) {
  for (const mma::Instruction& instruction : mma::kInstructions) {
    for (const Chip chip : mma::kAllChips) {
      if (mma::SupportOn(instruction, chip) == mma::Support::kUnavailable) continue;
      const Arithmetic arithmetic = mma::ArithmeticOf(instruction, chip);
      if (arithmetic.algorithm > Algorithm::kScaledGroups) continue;
      ASSERT_GT(arithmetic.block, 0) << mma::NameOf(instruction).view();
      EXPECT_EQ(instruction.a_columns() % arithmetic.block, 0) << mma::NameOf(instruction).view();
      if (arithmetic.algorithm != Algorithm::kFusedHalvesThenC) continue;
      EXPECT_EQ(instruction.a_columns(), 2 * arithmetic.block) << mma::NameOf(instruction).view();
    }
  }
}

}  // namespace
}  // namespace gemmd
