// SPDX-License-Identifier: Apache-2.0
//
// fp8 on three kinds of chips: Hopper's warpgroups (one block of 32, 13 bits), Ada's tensor cores
// (blocks of 16, 13 bits), consumer Blackwell's (one block of 32, 25 bits); and ptxas' emulation of
// mma on Hopper, which has no such instruction.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "tests/kernels/sim/dot_rig.h"

namespace gemmd {
namespace {

using mma::Chip;

double P(int exponent) { return std::ldexp(1.0, exponent); }

// 32 values: the given ones at their places, and zeros.
struct Place {
  size_t k;
  double value;
};
std::vector<double> At(const std::vector<Place>& places) {
  std::vector<double> values(32);
  for (const Place& place : places) values[place.k] = place.value;
  return values;
}

std::vector<double> OneThen16(double value) {
  std::vector<double> values(17, value);
  values[0] = 1;
  return values;
}

struct Fp8Case {
  std::string_view id;
  DotValues values;
  uint64_t hopper;
  uint64_t ada;
  uint64_t blackwell;
};

std::vector<Fp8Case> Cases() {
  const double c_with_12_bits = P(-11) - P(-24);  // 0x1.fffp-12.
  const double c_with_low_bits = 1 + 0x3ff * P(-23);
  return {
      {"Q01", {{1, -1, P(-6)}, {1, 1, P(-7)}}, 0x39000000, 0x39000000, 0x39000000},
      {"Q02", {{1, -1, P(-7)}, {1, 1, P(-7)}}, 0, 0, 0x38800000},
      {"Q03", {{1}, {1}, c_with_12_bits}, 0x3f800c00, 0x3f800c00, 0x3f800fff},
      {"Q04", {{0}, {0}, c_with_low_bits}, 0x3f800000, 0x3f800000, 0x3f8003ff},
      {"Q05", {OneThen16(P(-6)), OneThen16(P(-8))}, 0x3f800000, 0x3f800000, 0x3f802000},
      {"Q09",
       {At({{0, 1.5}, {1, 1}, {2, P(-6)}, {16, -1.5}, {17, -1}}),
        At({{0, 1.5}, {1, 1}, {2, P(-7)}, {16, 1.5}, {17, 1}})},
       0x39000000,
       0,
       0x39000000},
      {"Q10", {{P(-9), -P(-9), P(-6)}, {256, 256, P(-6)}}, 0, 0, 0x39800000},
      {"Q11", {{P(-9), -P(-9), P(-6)}, {256, 256, P(-7)}}, 0, 0, 0x39000000},
      {"Q12", {{0, P(-6)}, {448, P(-6)}}, 0x39800000, 0x39800000, 0x39800000},
  };
}

void ExpectCases(std::string_view name, Chip chip, uint64_t Fp8Case::*want, bool rotates) {
  DotRig rig(name, chip);
  for (const Fp8Case& one : Cases()) {
    const Dot dot = rig.Encoded(one.values).value();
    const size_t shifts = rotates ? rig.depth() : 1;
    for (size_t shift = 0; shift < shifts; ++shift) {
      const Dot rotated = Rotated(dot, rig.depth(), shift);
      EXPECT_EQ(rig.Multiply(rotated), one.*want) << std::hex << Describe(rig, one.id) << " on "
                                                  << mma::NameOf(chip) << ", shift " << shift;
      EXPECT_EQ(rig.Multiply(Negated(rig.instruction(), rotated)),
                NegatedResult(rig.instruction(), one.*want))
          << std::hex << Describe(rig, one.id) << " on " << mma::NameOf(chip) << ", negated";
    }
  }
}

TEST(Fp8, OfHoppersWarpgroupsIsOneBlock) {
  ExpectCases("wgmma.m64n8k32.f32.e4m3.e4m3", Chip::kSm90, &Fp8Case::hopper, true);
  ExpectCases("wgmma.sp.m64n8k64.f32.e4m3.e4m3", Chip::kSm90, &Fp8Case::hopper, true);
}

TEST(Fp8, OfAdaIsTwoBlocks) {
  ExpectCases("mma.m16n8k32.f32.e4m3.e4m3.f32", Chip::kSm89, &Fp8Case::ada, false);
}

TEST(Fp8, OfConsumerBlackwellIsOneWideBlock) {
  ExpectCases("mma.m16n8k32.f32.e4m3.e4m3.f32", Chip::kSm120, &Fp8Case::blackwell, true);
  ExpectCases("mma.m16n8k32.kind::f8f6f4.f32.e4m3.e4m3.f32", Chip::kSm120, &Fp8Case::blackwell,
              true);
  ExpectCases("mma.m16n8k32.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0",
              Chip::kSm120, &Fp8Case::blackwell, true);
}

// C alone, and C beside a product, loses the bits below 13; 12 bits would give 3f800000 for P3, 14
// bits 3f800400 for P4.
TEST(Fp8, OfWarpgroupsCutsC) {
  for (const char* name : {"wgmma.m64n8k32.f32.e4m3.e4m3", "wgmma.sp.m64n8k64.f32.e4m3.e4m3"}) {
    DotRig rig(name, Chip::kSm90);
    EXPECT_EQ(rig.Multiply({{}, {}, 0x3fffffff}), 0x3ffffc00u) << "P1 " << name;
    EXPECT_EQ(rig.Multiply({{}, {}, 0x00000fff}), 0x00000c00u) << "P2 " << name;
    EXPECT_EQ(rig.Multiply({{0x38}, {0x38}, 0x39000000}), 0x3f800400u) << "P3 " << name;
    EXPECT_EQ(rig.Multiply({{0x38, 0x04, 0x04}, {0x38, 0x04, 0x04}, 0}), 0x3f800000u)
        << "P4 " << name;
  }
}

// f16 sums of warpgroups: also 13 bits, and one rounding to nearest. 1 + 2^-10 + 2^-14 loses the
// last term; 1 + 1.5 * 2^-10 is a tie.
TEST(Fp8, OfWarpgroupsIntoF16) {
  DotRig rig("wgmma.m64n8k32.f16.e5m2.e5m2", Chip::kSm90);
  const auto result = [&](const DotValues& values) {
    return rig.Multiply(rig.Encoded(values).value());
  };
  EXPECT_EQ(result({{1, P(-5)}, {1, P(-5)}, 0}), 0x3c01u);
  EXPECT_EQ(result({{1, P(-5), P(-5)}, {1, P(-5), P(-6)}, 0}), 0x3c02u);  // Tie to even.
  EXPECT_EQ(result({{1, P(-5), P(-7)}, {1, P(-6), P(-7)}, 0}), 0x3c00u);  // Half; 2^-14 is cut.
  EXPECT_EQ(result({{1, P(-5), P(-6)}, {1, P(-6), P(-7)}, 0}), 0x3c01u);  // Half and 2^-13.
}

// The code that ptxas emits on Hopper adds the products with (k & 2) == 0, then the others, then C,
// rounded to nearest.
TEST(Fp8, OfMmaOnHopperIsTwoHalvesThenC) {
  for (const char* name : {"mma.m16n8k32.f32.e5m2.e5m2.f32", "mma.m16n8k16.f32.e5m2.e5m2.f32"}) {
    DotRig rig(name, Chip::kSm90);
    const auto result = [&](const DotValues& values) {
      return rig.Multiply(rig.Encoded(values).value());
    };
    const double least = P(-12);  // Squared it is half an ulp of one.
    // C is added last and to nearest: truncated, or inside the alignment, 3f800000.
    EXPECT_EQ(result({{1.5 * least}, {least}, 1}), 0x3f800001u) << name;
    // k 0 and 1 lose the small product, and k 2 cancels the rest; with exchanged halves it would be
    // kept.
    EXPECT_EQ(result({{1, least, -1}, {1, least, 1}, 0}), 0u) << name;
    EXPECT_EQ(result({{-1, 0, 1, least}, {1, 0, 1, least}, 0}), 0x33800000u) << name;
    // k 4 and 5 belong to the first half, 6 and 7 to the second.
    EXPECT_EQ(result({{1, 0, 0, 0, 0, least, 0, -1}, {1, 0, 0, 0, 0, least, 0, 1}, 0}), 0u) << name;
    EXPECT_EQ(result({{1, 0, 0, 0, -1, least}, {1, 0, 0, 0, 1, least}, 0}), 0x33800000u) << name;
  }
}

// Each half, and the sum with C, are f16 if D is.
TEST(Fp8, OfMmaOnHopperIntoF16) {
  DotRig rig("mma.m16n8k32.f16.e5m2.e5m2.f16", Chip::kSm90);
  const auto result = [&](const DotValues& values) {
    return rig.Multiply(rig.Encoded(values).value());
  };
  // The first half rounds 1 + 2^-12 to 1, and the second adds 2^-12 without effect; together, 2^-11
  // would be a tie.
  EXPECT_EQ(result({{1, P(-6), P(-6)}, {1, P(-6), P(-6)}, 0}), 0x3c00u);
  EXPECT_EQ(result({{1, 1.5 * P(-5)}, {1, P(-6)}, 0}), 0x3c01u);
  // 2048 + 1 + 1: the halves give 2, which C can absorb.
  EXPECT_EQ(result({{1, 0, 1}, {1, 0, 1}, 2048}), 0x6801u);
}

// Sparse: chunks of four along k in turn. Kept places 0 and 1 are of the first chunk.
TEST(Fp8, OfSparseMmaOnHopperSplitsByChunks) {
  DotRig rig("mma.sp.m16n8k64.f32.e5m2.e5m2.f32", Chip::kSm90);
  const auto result = [&](const DotValues& values) {
    return rig.Multiply(rig.Encoded(values).value());
  };
  const double least = P(-12);
  EXPECT_EQ(result({{1, least, -1}, {1, least, 1}, 0}), 0u);
  EXPECT_EQ(result({{-1, 0, 1, least}, {1, 0, 1, least}, 0}), 0x33800000u);
  EXPECT_EQ(result({{1, 0, 0, 0, -1, least}, {1, 0, 0, 0, 1, least}, 0}), 0x33800000u);
  EXPECT_EQ(result({{1.5 * least}, {least}, 1}), 0x3f800001u);
}

// A subnormal of e4m3 is a normal f16 there: 2^-9 times 2^15 aligns at 2^6, not 2^9.
TEST(Fp8, SubnormalsOfE4m3AreNormalisedInMma) {
  const DotValues values = {{P(-9), -P(-9), P(-6)}, {P(15), P(15), P(-13)}, 0};
  DotRig mma("mma.m16n8k32.f32.e4m3.e5m2.f32", Chip::kSm90);
  Dot dot = mma.Encoded(values).value();
  // All in one half: places 0, 1 and 4.
  for (std::vector<uint64_t>* line : {&dot.a, &dot.b}) {
    *line = {(*line)[0], (*line)[1], 0, 0, (*line)[2]};
  }
  EXPECT_EQ(mma.Multiply(dot), 0x36000000u);
  DotRig wgmma("wgmma.m64n8k32.f32.e4m3.e5m2", Chip::kSm90);
  EXPECT_EQ(wgmma.Multiply(dot), 0u);
}

}  // namespace
}  // namespace gemmd
