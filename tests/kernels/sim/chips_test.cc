// SPDX-License-Identifier: Apache-2.0
//
// The parameters of each chip's sums, and properties that hold whatever they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <vector>

#include "kernels/element.h"
#include "kernels/mma/arithmetic.h"
#include "kernels/mma/find.h"
#include "kernels/mma/support.h"
#include "kernels/sim/scalar.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using mma::Algorithm;
using mma::Arithmetic;
using mma::Chip;

struct ChipRow {
  Chip chip;
  std::string_view instruction;
  int block;
  int fraction_bits;
  int floor;
  int stored_bits;
  Algorithm algorithm = Algorithm::kFusedSums;
};

// As published; sm_90 as recorded.
constexpr ChipRow kChipRows[] = {
    {Chip::kSm70, "mma.m8n8k4.row.col.f32.f16.f16.f32", 4, 23, -131, 23},
    {Chip::kSm70, "mma.m8n8k4.row.col.f32.f16.f16.f16", 4, 23, -131, 23},
    {Chip::kSm70, "mma.m8n8k4.row.col.f16.f16.f16.f16", 4, 23, -19, 10},
    {Chip::kSm70, "wmma.m16n16k16.row.col.f32.f16.f16.f32", 4, 23, -131, 23},
    {Chip::kSm75, "mma.m8n8k4.row.col.f32.f16.f16.f32", 4, 24, -132, 23},
    {Chip::kSm75, "mma.m16n8k8.f32.f16.f16.f32", 8, 24, -132, 23},
    {Chip::kSm75, "mma.m16n8k8.f16.f16.f16.f16", 8, 24, -20, 10},
    {Chip::kSm75, "wmma.m16n16k16.row.col.f16.f16.f16.f16", 8, 24, -20, 10},
    {Chip::kSm80, "mma.m16n8k8.f32.f16.f16.f32", 8, 24, -132, 23},
    {Chip::kSm80, "mma.m16n8k16.f32.f16.f16.f32", 8, 24, -132, 23},
    {Chip::kSm80, "mma.m16n8k16.f16.f16.f16.f16", 8, 24, -20, 10},
    {Chip::kSm86, "mma.m16n8k16.f32.bf16.bf16.f32", 8, 24, -132, 23},
    {Chip::kSm80, "mma.m16n8k4.f32.tf32.tf32.f32", 4, 24, -132, 23},
    {Chip::kSm80, "mma.m16n8k8.f32.tf32.tf32.f32", 4, 24, -132, 23},
    {Chip::kSm80, "wmma.m16n16k8.row.col.f32.tf32.tf32.f32", 4, 24, -132, 23},
    {Chip::kSm89, "mma.m16n8k16.f32.f16.f16.f32", 8, 24, -132, 23},
    {Chip::kSm89, "mma.m16n8k16.f32.e4m3.e5m2.f32", 16, 13, -132, 13},
    {Chip::kSm89, "mma.m16n8k32.f32.e4m3.e4m3.f32", 16, 13, -132, 13},
    {Chip::kSm89, "mma.m16n8k32.f16.e5m2.e5m2.f16", 16, 13, -20, 10},
    {Chip::kSm90, "mma.m16n8k8.f32.bf16.bf16.f32", 8, 25, -133, 23},
    {Chip::kSm90, "mma.m16n8k16.f32.f16.f16.f32", 16, 25, -133, 23},
    {Chip::kSm90, "mma.m16n8k16.f16.f16.f16.f16", 16, 25, -21, 10},
    {Chip::kSm90, "mma.m16n8k4.f32.tf32.tf32.f32", 4, 25, -133, 23},
    {Chip::kSm90, "mma.m16n8k8.f32.tf32.tf32.f32", 8, 25, -133, 23},
    {Chip::kSm90, "wmma.m16n16k8.row.col.f32.tf32.tf32.f32", 4, 25, -133, 23},
    {Chip::kSm90, "wmma.m16n16k16.row.col.f16.f16.f16.f32", 16, 25, -133, 23},
    {Chip::kSm90, "mma.sp.m16n8k32.f32.f16.f16.f32", 16, 25, -133, 23},
    {Chip::kSm90, "mma.sp.m16n8k8.f32.tf32.tf32.f32", 4, 25, -133, 23},
    {Chip::kSm90, "wgmma.m64n256k16.f32.f16.f16", 16, 25, -133, 23},
    {Chip::kSm90, "wgmma.m64n64k8.f32.tf32.tf32", 8, 25, -133, 23},
    {Chip::kSm90, "wgmma.sp.m64n64k16.f32.tf32.tf32", 8, 25, -133, 23},
    {Chip::kSm90, "wgmma.m64n64k32.f32.e4m3.e4m3", 32, 13, -133, 13},
    {Chip::kSm90, "wgmma.sp.m64n64k64.f32.e5m2.e4m3", 32, 13, -133, 13},
    {Chip::kSm90, "wgmma.m64n64k32.f16.e4m3.e4m3", 32, 13, -21, 10},
    {Chip::kSm90, "mma.m16n8k32.f32.e4m3.e4m3.f32", 16, 25, -133, 23, Algorithm::kFusedHalvesThenC},
    {Chip::kSm90, "mma.m16n8k16.f16.e4m3.e4m3.f16", 8, 25, -21, 10, Algorithm::kFusedHalvesThenC},
    {Chip::kSm90, "mma.sp.m16n8k64.f32.e4m3.e4m3.f32", 16, 25, -133, 23,
     Algorithm::kFusedHalvesThenC},
    {Chip::kSm100, "mma.m16n8k16.f32.bf16.bf16.f32", 16, 25, -133, 23},
    {Chip::kSm100, "mma.m16n8k8.f32.tf32.tf32.f32", 8, 25, -133, 23},
    {Chip::kSm100, "mma.m16n8k32.f32.e4m3.e4m3.f32", 16, 25, -133, 23,
     Algorithm::kFusedHalvesThenC},
    {Chip::kSm120, "mma.m16n8k16.f32.f16.f16.f32", 16, 25, -133, 23},
    {Chip::kSm120, "mma.m16n8k32.f32.e4m3.e4m3.f32", 32, 25, -133, 23},
    {Chip::kSm120, "mma.m16n8k32.kind::f8f6f4.f16.e2m1.e3m2.f16", 32, 25, -21, 10},
    {Chip::kSm120, "mma.m16n8k64.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0", 64,
     35, -133, 23, Algorithm::kScaledGroups},
};

TEST(Arithmetic, IsThatOfTheChip) {
  for (const ChipRow& row : kChipRows) {
    const mma::Instruction* instruction = mma::FindInstruction(row.instruction);
    ASSERT_NE(instruction, nullptr) << row.instruction;
    const Arithmetic got = mma::ArithmeticOf(*instruction, row.chip);
    SCOPED_TRACE(testing::Message() << row.instruction << " on " << mma::NameOf(row.chip));
    EXPECT_EQ(got.algorithm, row.algorithm);
    EXPECT_EQ(got.block, row.block);
    EXPECT_EQ(got.fraction_bits, row.fraction_bits);
    EXPECT_EQ(got.floor, row.floor);
    EXPECT_EQ(got.stored_bits, row.stored_bits);
    EXPECT_EQ(got.widens_to_f16, row.algorithm == Algorithm::kFusedHalvesThenC);
  }
}

TEST(Arithmetic, OfTheOthersIsExactOrIeee) {
  const auto algorithm = [](std::string_view name, Chip chip) {
    return mma::ArithmeticOf(*mma::FindInstruction(name), chip).algorithm;
  };
  EXPECT_EQ(algorithm("mma.m16n8k16.f64", Chip::kSm90), Algorithm::kMultiplyAddsF64);
  EXPECT_EQ(algorithm("mma.m16n8k32.s32.s8.s8.s32", Chip::kSm80), Algorithm::kIntegers);
  EXPECT_EQ(algorithm("mma.m16n8k64.s32.s4.s4.s32", Chip::kSm90), Algorithm::kIntegers);
  EXPECT_EQ(algorithm("mma.m8n8k128.s32.b1.b1.s32.xor.popc", Chip::kSm90), Algorithm::kBitCounts);
  EXPECT_EQ(algorithm("mma.m8n8k4.row.col.f16.f16.f16.f16", Chip::kSm90), Algorithm::kMultiplyAdds);
  EXPECT_EQ(algorithm("mma.m8n8k4.row.col.f16.f16.f16.f16", Chip::kSm75), Algorithm::kFusedSums);
}

// A block divides the products of every instruction, and both halves of a lowered one.
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

// A sum of one chip, with operands of a type.
struct SumKind {
  std::string_view instruction;
  Chip chip;
};
constexpr SumKind kSumKinds[] = {
    {"mma.m8n8k4.row.col.f32.f16.f16.f32", Chip::kSm70},
    {"mma.m16n8k16.f32.bf16.bf16.f32", Chip::kSm80},
    {"mma.m16n8k32.f32.e4m3.e5m2.f32", Chip::kSm89},
    {"mma.m16n8k16.f32.bf16.bf16.f32", Chip::kSm90},
    {"mma.m16n8k16.f16.f16.f16.f16", Chip::kSm90},
    {"mma.m16n8k8.f32.tf32.tf32.f32", Chip::kSm90},
    {"wgmma.m64n8k32.f32.e4m3.e4m3", Chip::kSm90},
    {"mma.m16n8k32.f32.e5m2.e5m2.f32", Chip::kSm120},
};

struct RandomSum {
  std::vector<sim::Product> products;
  uint32_t addend;
};

// Any bits at all, specials included, or magnitudes near each other.
uint32_t AnyOperand(ElementType type, bool is_near, RandomSource& random) {
  return static_cast<uint32_t>(is_near ? Encode(type, random.AnyMagnitude(-6, 6))
                                       : random.Bits() >> (64 - BitsOf(type)));
}

RandomSum AnySum(const mma::Instruction& instruction, const Arithmetic& arithmetic,
                 RandomSource& random) {
  RandomSum sum;
  const bool is_near = random.Flip();
  for (int i = 0; i < arithmetic.block; ++i) {
    const uint32_t a = AnyOperand(instruction.a, is_near, random);
    const uint32_t b = AnyOperand(instruction.b, is_near, random);
    sum.products.push_back(
        {.a = sim::Decode(instruction.a, a), .b = sim::Decode(instruction.b, b)});
  }
  sum.addend = AnyOperand(arithmetic.sum, is_near, random);
  return sum;
}

TEST(FusedSumProperty, OrderInABlockDoesNotMatter) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const SumKind& kind : kSumKinds) {
    const mma::Instruction& instruction = *mma::FindInstruction(kind.instruction);
    const Arithmetic arithmetic = mma::ArithmeticOf(instruction, kind.chip);
    for (int i = 0; i < 2000; ++i) {
      RandomSum sum = AnySum(instruction, arithmetic, random);
      const uint32_t want = sim::FusedSum(arithmetic, sum.products, sum.addend);
      for (size_t last = sum.products.size() - 1; last > 0; --last) {
        const auto other = static_cast<size_t>(random.Between(0, static_cast<int64_t>(last)));
        std::swap(sum.products[last], sum.products[other]);
      }
      ASSERT_EQ(sim::FusedSum(arithmetic, sum.products, sum.addend), want) << kind.instruction;
    }
  }
}

TEST(FusedSumProperty, ZeroProductsDoNotMatter) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const SumKind& kind : kSumKinds) {
    const mma::Instruction& instruction = *mma::FindInstruction(kind.instruction);
    const Arithmetic arithmetic = mma::ArithmeticOf(instruction, kind.chip);
    for (int i = 0; i < 2000; ++i) {
      RandomSum sum = AnySum(instruction, arithmetic, random);
      sum.products.resize(sum.products.size() / 2);
      const uint32_t want = sim::FusedSum(arithmetic, sum.products, sum.addend);
      const sim::Number largest =
          sim::Decode(instruction.b, static_cast<uint32_t>(Encode(instruction.b, 240)));
      sum.products.push_back({.a = sim::Decode(instruction.a, 0), .b = largest});
      ASSERT_EQ(sim::FusedSum(arithmetic, sum.products, sum.addend), want) << kind.instruction;
    }
  }
}

// Away from the ends of the range, 2^s times every product and C is 2^s times the sum.
TEST(FusedSumProperty, PowersOfTwoScaleTheSum) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  for (const Chip chip : {Chip::kSm80, Chip::kSm90}) {
    const mma::Instruction& instruction = *mma::FindInstruction("mma.m16n8k16.f32.bf16.bf16.f32");
    const Arithmetic arithmetic = mma::ArithmeticOf(instruction, chip);
    for (int i = 0; i < 5000; ++i) {
      const auto scale = static_cast<int>(random.Between(-20, 20));
      std::vector<sim::Product> products;
      std::vector<sim::Product> scaled;
      const auto number = [](double value) {
        return sim::Decode(ElementType::kBf16,
                           static_cast<uint32_t>(Encode(ElementType::kBf16, value)));
      };
      for (int p = 0; p < arithmetic.block; ++p) {
        const double a = random.AnyMagnitude(-12, 12);
        const double b = random.AnyMagnitude(-12, 12);
        products.push_back({.a = number(a), .b = number(b)});
        scaled.push_back({.a = number(std::ldexp(a, scale)), .b = number(b)});
      }
      const auto c = static_cast<float>(random.AnyMagnitude(-24, 24));
      const float scaled_c = std::ldexp(c, scale);
      const float sum =
          std::bit_cast<float>(sim::FusedSum(arithmetic, products, std::bit_cast<uint32_t>(c)));
      const uint32_t got = sim::FusedSum(arithmetic, scaled, std::bit_cast<uint32_t>(scaled_c));
      ASSERT_EQ(got, std::bit_cast<uint32_t>(std::ldexp(sum, scale))) << scale;
    }
  }
}

// Groups whose products cancel or are zero leave C alone, whatever exponents their factors have.
TEST(ScaledGroups, WithoutASumLeaveC) {
  const mma::Instruction& instruction = *mma::FindInstruction(
      "mma.m16n8k64.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0");
  const Arithmetic arithmetic = mma::ArithmeticOf(instruction, Chip::kSm120);
  for (const int exponent : {-254, 0, 254}) {
    const std::vector<sim::ScaledGroup> groups(4, {.fraction_bits = 2, .exponent = exponent});
    for (const uint32_t c :
         {0x00000000u, 0x00000001u, 0x80000001u, 0x00800000u, 0xbf800000u, 0x7f7fffffu}) {
      EXPECT_EQ(sim::SumOfGroups(arithmetic, groups, c), c) << std::hex << c << ", " << exponent;
    }
  }
}

}  // namespace
}  // namespace gemmd
