// SPDX-License-Identifier: Apache-2.0
//
// The codecs of single elements compared with the format's meaning: decoding with the formula of
// sign, exponent and fraction, encoding with a search for the nearest code.
#include "kernels/matrix/element_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/matrix/element.h"
#include "tests/testing/random_source.h"
#include "tests/testing/special_values.h"

namespace gemmd {
namespace {

using enum ElementType;

double FormulaOf(ElementType type, uint64_t code) {
  const FloatFormat format = FactsOf(type).format;
  const int width = 1 + format.exponent_bits + format.fraction_bits;
  const auto exponent =
      static_cast<int>(code >> format.fraction_bits & ((uint64_t{1} << format.exponent_bits) - 1));
  const auto fraction = static_cast<double>(code & ((uint64_t{1} << format.fraction_bits) - 1));
  const double sign = (code >> (width - 1) & 1) != 0 ? -1 : 1;
  const int top = (1 << format.exponent_bits) - 1;
  if (format.has_infinity && exponent == top) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : kNan;
  }
  const uint64_t all_ones = (uint64_t{1} << (width - 1)) - 1;
  if (format.has_nan && (code & all_ones) == all_ones) return kNan;
  const double scaled = std::ldexp(fraction, -format.fraction_bits);
  return sign * (exponent == 0 ? std::ldexp(scaled, 1 - format.bias)
                               : std::ldexp(1 + scaled, exponent - format.bias));
}

constexpr ElementType kNarrowFloats[] = {kF16, kBf16, kE4m3, kE5m2, kE3m2, kE2m3, kE2m1};

TEST(ElementCodesTest, DecodesEveryCodeOfNarrowFloats) {
  for (ElementType type : kNarrowFloats) {
    for (uint64_t code = 0; code < uint64_t{1} << BitsOf(type); ++code) {
      const double want = FormulaOf(type, code);
      const double got = Decode(type, code);
      EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << std::string(NameOf(type)) << " " << code;
      EXPECT_TRUE(std::isnan(want) || std::signbit(got) == std::signbit(want));
    }
  }
}

// Every code, the midpoint to the next one, and values slightly beside that: ties go to even codes.
TEST(ElementCodesTest, EncodesToTheNearestCode) {
  for (ElementType type : kNarrowFloats) {
    const uint64_t half = uint64_t{1} << (BitsOf(type) - 1);
    for (uint64_t code = 0; code + 1 < half; ++code) {
      const double value = FormulaOf(type, code);
      const double next = FormulaOf(type, code + 1);
      if (!std::isfinite(next)) break;
      const double middle = (value + next) / 2;
      const uint64_t even = code % 2 == 0 ? code : code + 1;
      ASSERT_EQ(Encode(type, value), code);
      ASSERT_EQ(Encode(type, middle), even);
      ASSERT_EQ(Encode(type, std::nextafter(middle, 0)), code);
      ASSERT_EQ(Encode(type, std::nextafter(middle, 1e300)), code + 1);
      ASSERT_EQ(Encode(type, -middle), even | half);
      // The same as f32, which holds all of these values.
      const auto narrow = static_cast<float>(middle);
      uint64_t bits = 0;
      EncodeLine(type, &narrow, 1, reinterpret_cast<std::byte*>(&bits));
      ASSERT_EQ(bits, even) << std::string(NameOf(type)) << " " << code;
    }
  }
}

// Every NaN gets the same code.
TEST(ElementCodesTest, AllNansAreOne) {
  struct Golden {
    ElementType type;
    uint64_t code;
  };
  constexpr Golden kGolden[] = {{kF64, 0x7fff'ffff'ffff'ffff},
                                {kF32, 0x7fff'ffff},
                                {kTf32, 0x7fff'e000},
                                {kF16, 0x7fff},
                                {kBf16, 0x7fff},
                                {kE4m3, 0x7f},
                                {kE5m2, 0x7f},
                                {kS32, 0}};
  constexpr uint64_t kNans[] = {0x7ff8'0000'0000'0000, 0xfff8'0000'0000'0000, 0x7fff'ffff'ffff'ffff,
                                0xffff'ffff'ffff'ffff, 0x7ff8'1234'5678'9abc};
  for (const Golden& golden : kGolden) {
    for (uint64_t bits : kNans) {
      const double value = std::bit_cast<double>(bits);
      EXPECT_EQ(Encode(golden.type, value), golden.code) << std::string(NameOf(golden.type));
      const auto narrow = static_cast<float>(value);
      uint64_t code = 0;
      EncodeLine(golden.type, &narrow, 1, reinterpret_cast<std::byte*>(&code));
      EXPECT_EQ(code, golden.code) << std::string(NameOf(golden.type)) << " from f32";
    }
  }
}

TEST(ElementCodesTest, IntegersRoundAndSaturate) {
  RandomSource random;
  for (ElementType type : {kS8, kU8, kS4, kU4, kB1, kS32}) {
    const int bits = BitsOf(type);
    const bool is_signed = FactsOf(type).is_signed;
    const double low = is_signed ? -std::ldexp(1, bits - 1) : 0;
    const double high = std::ldexp(1, is_signed ? bits - 1 : bits) - 1;
    for (int i = 0; i < 10000; ++i) {
      const double value = std::ldexp(random.Normal(), static_cast<int>(random.Between(-2, bits)));
      const double want = std::clamp(std::nearbyint(value), low, high);
      EXPECT_EQ(Decode(type, Encode(type, value)), want) << value << ", " << random.trace();
    }
  }
}

}  // namespace
}  // namespace gemmd
