// SPDX-License-Identifier: Apache-2.0
//
// Fused sums of f16, bf16 and tf32, each case chosen to distinguish one property of the adder from
// similar ones. The expected bits of sm_90 are those of the chip; those of sm_80 and sm_70 follow
// from the published parameters by exact fractions, independently of the code under test.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/mma/arithmetic.h"
#include "tests/kernels/sim/dot_rig.h"

namespace gemmd {
namespace {

using mma::Chip;

double P(int exponent) { return std::ldexp(1.0, exponent); }

std::vector<double> Repeated(size_t count, double value) {
  return std::vector<double>(count, value);
}
std::vector<double> OneThen(size_t count, double value) {
  std::vector<double> values(count + 1, value);
  values[0] = 1;
  return values;
}

struct FusedCase {
  std::string_view id;
  std::string_view tells;
  DotValues values;
  uint64_t hopper;  // One block of all products, 25 fraction bits.
  uint64_t ampere;  // Blocks of 8, 24 fraction bits, floor -132.
  // Blocks of 4, 23 fraction bits: m8n8k4, of at most four f16 products.
  std::optional<uint64_t> volta;
  bool needs_f16 = false;  // Depends on the subnormals of f16.
};

std::vector<FusedCase> AlignmentCases() {
  return {
      {"P01", "25 bits", {{1, -1, P(-12)}, {1, 1, P(-13)}}, 0x33000000, 0, 0},
      {"P02", "not 26", {{1, -1, P(-13)}, {1, 1, P(-13)}}, 0, 0, 0},
      {"P03", "24 bits", {{1, -1, P(-12)}, {1, 1, P(-12)}}, 0x33800000, 0x33800000, 0},
      {"P04", "C has as many", {{128, -128}, {128, 128}, P(-11)}, 0x3a000000, 0, 0},
      {"P05", "and no more", {{128, -128}, {128, 128}, P(-12)}, 0, 0, 0},
      {"P06", "C aligns", {{P(-12), 1}, {P(-13), -1}, 1}, 0x33000000, 0, 0},
      {"P07", "magnitudes are cut", {{1, -1, -P(-13)}, {1, 1, P(-13)}}, 0, 0, 0},
      {"P08", "not rounded", {{1, -1, 1.5 * P(-13)}, {1, 1, P(-12)}}, 0x33000000, 0, 0},
      {"P09",
       "each is cut",
       {OneThen(15, P(-13)), OneThen(15, P(-13))},
       0x3f800000,
       0x3f800000,
       {}},
      {"P10",
       "D toward zero",
       {OneThen(15, P(-12)), OneThen(15, P(-13))},
       0x3f800003,
       0x3f800000,
       {}},
      {"P11",
       "products not normalised",
       {{1.5, -1.5, P(-12)}, {1.5, 1.5, P(-13)}},
       0x33000000,
       0,
       0},
      {"P12", "nor subnormals", {{P(-24), -P(-24), P(-14)}, {P(10), P(10), P(-16)}}, 0, 0, 0, true},
      {"P13", "nor subnormals", {{P(-24), -P(-24), P(-14)}, {P(15), P(15), P(-15)}}, 0, 0, 0, true},
      {"P14",
       "zeros do not align",
       {{0, P(-13)}, {P(15), P(-13)}},
       0x32800000,
       0x32800000,
       0x32800000},
      {"P22",
       "one block of 16",
       {{1, P(-12), 0, 0, 0, 0, 0, 0, -1}, {1, P(-12), 0, 0, 0, 0, 0, 0, 1}},
       0x33800000,
       0,
       {}},
      {"P23",
       "D is not rounded to nearest",
       {{P(-12), P(-12), 0, 0, 0, 0, 0, 0, 1, -1}, {P(-12), P(-13), 0, 0, 0, 0, 0, 0, 1, 1}, 1},
       0x3f800000,
       0x3f800000,
       {}},
      {"P25", "half an ulp", {{1, P(-12)}, {1, P(-12)}}, 0x3f800000, 0x3f800000, 0x3f800000},
      {"P26",
       "both signs toward zero",
       {{1, 1.5 * P(-12)}, {1, P(-12)}, P(-23)},
       0x3f800001,
       0x3f800001,
       0x3f800001},
  };
}

// At the ends of f32's range, where f16 does not reach.
std::vector<FusedCase> RangeCases() {
  const double almost = (2 - P(-7)) * P(-75);
  const double largest = std::numeric_limits<float>::max();
  return {
      {"P16",
       "a zero beside a huge number",
       {{0}, {P(127)}, 0x800001 * P(-33)},
       0x3a800001,
       0x3a800001,
       {}},
      {"P17", "floor and one block", {Repeated(16, P(-76)), Repeated(16, P(-76))}, 2, 1, {}},
      {"P18", "least unit", {{almost, P(-79)}, {P(-75), P(-78)}}, 1, 0, {}},
      {"P19", "floor below -132", {{almost, P(-79), P(-79)}, {P(-75), P(-79), P(-79)}}, 1, 0, {}},
      {"P20",
       "floor above -134",
       {{almost, P(-79), P(-80), P(-80)}, {P(-75), P(-79), P(-79), P(-79)}},
       0,
       0,
       {}},
      {"P21", "subnormal C", {Repeated(16, P(-76)), Repeated(16, P(-76)), P(-149)}, 1, 1, {}},
      {"P29", "overflow", {{P(127), P(127)}, {1, 1}}, 0x7f800000, 0x7f800000, {}},
      {"P30", "no overflow by rounding", {{P(52)}, {P(51)}, largest}, 0x7f7fffff, 0x7f7fffff, {}},
      {"P31", "huge products cancel", {{P(127), -P(127)}, {P(127), P(127)}, 1}, 0, 0, {}},
      {"P32",
       "below their window",
       {{P(127), -P(127), P(100)}, {P(127), P(127), P(127)}, 1},
       0,
       0,
       {}},
      {"P33", "+0 of a negative sum", {{-P(-76)}, {P(-75)}}, 0, 0, {}},
      {"P34", "+0 of negative zeros", {{-0.0, -0.0}, {1, 1}, -0.0}, 0, 0, 0},
  };
}

// f16 sums.
std::vector<FusedCase> HalfCases() {
  return {
      {"P35", "floor -21 drops 2^-47", {{P(-12), P(-24)}, {P(-13), P(-23)}}, 0, 0, 0},
      {"P36", "and keeps 2^-46", {{P(-12), P(-23)}, {P(-13), P(-23)}}, 1, 0, 0},
      {"P37", "one rounding", {{1, 0.5, P(-12)}, {1, P(-10), P(-13)}}, 0x3c01, 0x3c00, 0x3c00},
      {"P38", "overflow at 65520", {{4}, {4}, 65504}, 0x7c00, 0x7c00, 0x7c00},
      {"P39", "not below", {{4 - P(-9)}, {4}, 65504}, 0x7bff, 0x7bff, 0x7bff},
      {"N5", "largest", {Repeated(16, 65504), Repeated(16, 65504)}, 0x7c00, 0x7c00, {}},
  };
}

// Instructions of each depth and kind: a case runs where it fits.
constexpr std::array kIntoF32 = {
    "mma.m16n8k16.f32.f16.f16.f32",
    "mma.m16n8k16.f32.bf16.bf16.f32",
    "mma.m16n8k8.f32.f16.f16.f32",
    "mma.m16n8k8.f32.bf16.bf16.f32",
    "mma.m16n8k8.f32.tf32.tf32.f32",
    "mma.m16n8k4.f32.tf32.tf32.f32",
    "wmma.m16n16k16.row.col.f32.f16.f16.f32",
    "wmma.m8n32k16.col.row.f32.bf16.bf16.f32",
};
constexpr std::array kIntoF32OnHopper = {
    "wgmma.m64n8k16.f32.f16.f16",        "wgmma.m64n8k16.f32.bf16.bf16",
    "wgmma.m64n8k8.f32.tf32.tf32",       "mma.sp.m16n8k32.f32.f16.f16.f32",
    "mma.sp.m16n8k32.f32.bf16.bf16.f32", "mma.sp.m16n8k16.f32.f16.f16.f32",
    "mma.sp.m16n8k16.f32.tf32.tf32.f32", "mma.sp.m16n8k8.f32.tf32.tf32.f32",
    "wgmma.sp.m64n8k32.f32.f16.f16",     "wgmma.sp.m64n8k32.f32.bf16.bf16",
    "wgmma.sp.m64n8k16.f32.tf32.tf32",
};
constexpr std::array kIntoF16 = {"mma.m16n8k16.f16.f16.f16.f16", "mma.m16n8k8.f16.f16.f16.f16",
                                 "wmma.m32n8k16.row.row.f16.f16.f16.f16"};
constexpr std::array kIntoF16OnHopper = {"wgmma.m64n8k16.f16.f16.f16",
                                         "mma.sp.m16n8k32.f16.f16.f16.f16",
                                         "wgmma.sp.m64n8k32.f16.f16.f16"};

// Runs cases with instructions, and counts how often each fitted.
class Player {
 public:
  explicit Player(std::vector<FusedCase> cases) : cases_(std::move(cases)), runs_(cases_.size()) {}

  // At every place along k, and with both signs: within one block the place does not matter.
  template <typename Names>
  void PlayInOneBlock(const Names& names, Chip chip) {
    Play(names, chip, [](DotRig& rig, const FusedCase& one, const Dot& dot) {
      for (size_t shift = 0; shift < rig.depth(); ++shift) {
        const Dot rotated = Rotated(dot, rig.depth(), shift);
        EXPECT_EQ(rig.Multiply(rotated), one.hopper)
            << std::hex << Describe(rig, one.id) << ", shifted by " << shift << ": " << one.tells;
        EXPECT_EQ(rig.Multiply(Negated(rig.instruction(), rotated)),
                  NegatedResult(rig.instruction(), one.hopper))
            << std::hex << Describe(rig, one.id) << ", negated: " << one.tells;
      }
    });
  }

  // At the given places. `want` is a member of a case, or null.
  template <typename Names, typename Want>
  void PlayInPlace(const Names& names, Chip chip, const Want& want) {
    Play(names, chip, [&](DotRig& rig, const FusedCase& one, const Dot& dot) {
      const std::optional<uint64_t> expected = want(one);
      if (!expected) return;
      EXPECT_EQ(rig.Multiply(dot), *expected)
          << std::hex << Describe(rig, one.id) << " on " << mma::NameOf(chip);
      EXPECT_EQ(rig.Multiply(Negated(rig.instruction(), dot)),
                NegatedResult(rig.instruction(), *expected))
          << std::hex << Describe(rig, one.id) << " on " << mma::NameOf(chip) << ", negated";
    });
  }

  void ExpectAllPlayed() const {
    for (size_t i = 0; i < cases_.size(); ++i) EXPECT_GT(runs_[i], 0) << cases_[i].id;
  }

 private:
  template <typename Names, typename Visit>
  void Play(const Names& names, Chip chip, const Visit& visit) {
    for (const std::string_view name : names) {
      DotRig rig(name, chip);
      for (size_t i = 0; i < cases_.size(); ++i) {
        if (cases_[i].needs_f16 && rig.instruction().a != ElementType::kF16) continue;
        const std::optional<Dot> dot = rig.Encoded(cases_[i].values);
        if (!dot) continue;
        ++runs_[i];
        visit(rig, cases_[i], *dot);
      }
    }
  }

  std::vector<FusedCase> cases_;
  std::vector<int> runs_;
};

std::vector<FusedCase> F32Cases() {
  std::vector<FusedCase> cases = AlignmentCases();
  const std::vector<FusedCase> range = RangeCases();
  cases.insert(cases.end(), range.begin(), range.end());
  return cases;
}

TEST(FusedSum, OnHopper) {
  Player player(F32Cases());
  player.PlayInOneBlock(kIntoF32, Chip::kSm90);
  player.PlayInOneBlock(kIntoF32OnHopper, Chip::kSm90);
  player.ExpectAllPlayed();
}

TEST(FusedSum, IntoF16OnHopper) {
  Player player(HalfCases());
  player.PlayInOneBlock(kIntoF16, Chip::kSm90);
  player.PlayInOneBlock(kIntoF16OnHopper, Chip::kSm90);
  player.ExpectAllPlayed();
}

TEST(FusedSum, OnBlackwellIsHoppers) {
  for (const Chip chip : {Chip::kSm100, Chip::kSm103, Chip::kSm120}) {
    Player player(F32Cases());
    player.PlayInOneBlock(kIntoF32, chip);
    Player halves(HalfCases());
    halves.PlayInOneBlock(kIntoF16, chip);
  }
}

// Only instructions of depth 16: shallower ones have fewer blocks.
TEST(FusedSum, OnAmpereAndAda) {
  constexpr std::array kInto32 = {"mma.m16n8k16.f32.f16.f16.f32", "mma.m16n8k16.f32.bf16.bf16.f32",
                                  "wmma.m16n16k16.row.col.f32.f16.f16.f32"};
  constexpr std::array kInto16 = {"mma.m16n8k16.f16.f16.f16.f16"};
  const auto ampere = [](const FusedCase& one) { return std::optional<uint64_t>(one.ampere); };
  for (const Chip chip : {Chip::kSm80, Chip::kSm86, Chip::kSm89}) {
    Player player(F32Cases());
    player.PlayInPlace(kInto32, chip, ampere);
    player.ExpectAllPlayed();
    Player halves(HalfCases());
    halves.PlayInPlace(kInto16, chip, ampere);
    halves.ExpectAllPlayed();
  }
}

TEST(FusedSum, OnVolta) {
  constexpr std::array kInto32 = {"mma.m8n8k4.row.col.f32.f16.f16.f32",
                                  "mma.m8n8k4.col.row.f32.f16.f16.f32"};
  constexpr std::array kInto16 = {"mma.m8n8k4.row.col.f16.f16.f16.f16"};
  const auto volta = [](const FusedCase& one) { return one.volta; };
  Player player(F32Cases());
  player.PlayInPlace(kInto32, Chip::kSm70, volta);
  Player halves(HalfCases());
  halves.PlayInPlace(kInto16, Chip::kSm70, volta);
}

// One block of 8 in mma and wgmma, two of 4 in wmma.
TEST(FusedSum, OfTf32InWmmaIsTwoBlocks) {
  const DotValues values = {{1, P(-12), 0, 0, -1}, {1, P(-12), 0, 0, 1}, 0};
  const auto result = [&](std::string_view name) {
    DotRig rig(name, Chip::kSm90);
    return rig.Multiply(rig.Encoded(values).value());
  };
  EXPECT_EQ(result("mma.m16n8k8.f32.tf32.tf32.f32"), 0x33800000u);
  EXPECT_EQ(result("wgmma.m64n8k8.f32.tf32.tf32"), 0x33800000u);
  EXPECT_EQ(result("mma.sp.m16n8k16.f32.tf32.tf32.f32"), 0x33800000u);
  EXPECT_EQ(result("wmma.m16n16k8.row.col.f32.tf32.tf32.f32"), 0u);
}

}  // namespace
}  // namespace gemmd
