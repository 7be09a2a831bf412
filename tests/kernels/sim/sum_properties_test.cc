// SPDX-License-Identifier: Apache-2.0
//
// Properties that the sums of every chip have, whatever their parameters are.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/matrix/element.h"
#include "kernels/mma/arithmetic.h"
#include "kernels/mma/instructions.h"
#include "kernels/sim/scalar.h"
#include "kernels/sim/unit.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

using mma::Arithmetic;
using mma::Chip;

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

// Any bits, specials included, or magnitudes close to each other.
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

// Groups whose products cancel or are zero leave C unchanged, whatever exponents their factors
// have.
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

// Sums of groups keep 35 bits below the largest exponent of the factors (MMA-Sim, arXiv
// 2511.10909). Two groups cancel; the factor of the third takes it 2^-j below them.
TEST(ScaledGroups, KeepThirtyFiveBits) {
  for (const std::string_view name :
       {"mma.m16n8k64.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0",
        "mma.m16n8k64.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"}) {
    const mma::Instruction& instruction = *mma::FindInstruction(name);
    sim::MatrixUnit unit(instruction, Chip::kSm120);
    constexpr uint64_t kOneCode = 0x2;  // e2m1.
    std::vector<uint64_t> a(16 * 64);
    std::vector<uint64_t> b(64 * 8);
    const std::vector<uint64_t> c(16 * 8);
    std::vector<uint64_t> d(16 * 8);
    a[0] = a[32] = kOneCode;
    a[16] = kOneCode | 0x8;  // Minus one, of the same factors as the first.
    b[0] = b[16 * 8] = b[32 * 8] = kOneCode;
    for (int j = 20; j <= 40; ++j) {
      constexpr uint8_t kFactorOne = 127;
      std::vector<uint8_t> a_factors(16 * 2, kFactorOne);
      const std::vector<uint8_t> b_factors(2 * 8, kFactorOne);
      a_factors[1] = static_cast<uint8_t>(kFactorOne - j);
      unit.Multiply(
          {.a = a, .a_k = {}, .b = b, .c = c, .a_factors = a_factors, .b_factors = b_factors}, d);
      const float want = j <= 35 ? std::ldexp(1.0F, -j) : 0.0F;
      EXPECT_EQ(d[0], std::bit_cast<uint32_t>(want)) << std::string(name) << ", 2^-" << j;
    }
  }
}

}  // namespace
}  // namespace gemmd
