// SPDX-License-Identifier: Apache-2.0
//
// Values and rounding of every element type, exhaustively if it has at most 19 bits.
#include "kernels/matrix/element.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/random_source.h"
#include "tests/testing/special_values.h"

namespace gemmd {
namespace {

using enum ElementType;

std::string PrintType(const testing::TestParamInfo<ElementType>& type) {
  return std::string(NameOf(type.param));
}

struct Golden {
  ElementType type;
  uint64_t bits;
  double value;
};

// Written by hand from IEEE 754-2019, OCP OFP8 1.0 and OCP MX 1.0 (section 5.3).
constexpr Golden kGoldens[] = {
    {kF64, 0x3ff0000000000000, 1},
    {kF64, 0x0000000000000001, 0x1p-1074},
    {kF64, 0x7fefffffffffffff, 0x1.fffffffffffffp1023},
    {kF64, 0xfff0000000000000, -kInfinity},
    {kF32, 0x3f800000, 1},
    {kF32, 0x00000001, 0x1p-149},
    {kF32, 0xff7fffff, -0x1.fffffep127},
    {kF32, 0x7f800000, kInfinity},
    {kF32, 0x7fc00000, kNan},
    {kTf32, 0x3f800000, 1},
    {kTf32, 0x3f802000, 1 + 0x1p-10},
    {kTf32, 0x00002000, 0x1p-136},
    {kTf32, 0x7f7fe000, 0x1.ffcp127},
    {kTf32, 0xff800000, -kInfinity},
    {kF16, 0x0000, 0},
    {kF16, 0x0001, 0x1p-24},
    {kF16, 0x03ff, 1023 * 0x1p-24},
    {kF16, 0x0400, 0x1p-14},
    {kF16, 0x3555, 0.333251953125},
    {kF16, 0x3c00, 1},
    {kF16, 0x3c01, 1 + 0x1p-10},
    {kF16, 0xc000, -2},
    {kF16, 0x7bff, 65504},
    {kF16, 0x7c00, kInfinity},
    {kF16, 0xfc00, -kInfinity},
    {kF16, 0x7e00, kNan},
    {kBf16, 0x0001, 0x1p-133},
    {kBf16, 0x0080, 0x1p-126},
    {kBf16, 0x3f80, 1},
    {kBf16, 0x4049, 3.140625},
    {kBf16, 0x7f7f, 0x1.fep127},
    {kBf16, 0x7f80, kInfinity},
    {kBf16, 0xffc0, kNan},
    {kE4m3, 0x01, 0x1p-9},
    {kE4m3, 0x07, 7 * 0x1p-9},
    {kE4m3, 0x08, 0x1p-6},
    {kE4m3, 0x38, 1},
    {kE4m3, 0x78, 256},
    {kE4m3, 0x7e, 448},
    {kE4m3, 0xfe, -448},
    {kE4m3, 0x7f, kNan},
    {kE4m3, 0xff, kNan},
    {kE5m2, 0x01, 0x1p-16},
    {kE5m2, 0x03, 3 * 0x1p-16},
    {kE5m2, 0x04, 0x1p-14},
    {kE5m2, 0x3c, 1},
    {kE5m2, 0x7b, 57344},
    {kE5m2, 0x7c, kInfinity},
    {kE5m2, 0xfc, -kInfinity},
    {kE5m2, 0x7d, kNan},
    {kE5m2, 0x7f, kNan},
    {kE3m2, 0x01, 0.0625},
    {kE3m2, 0x03, 0.1875},
    {kE3m2, 0x04, 0.25},
    {kE3m2, 0x0c, 1},
    {kE3m2, 0x1f, 28},
    {kE3m2, 0x3f, -28},
    {kE2m3, 0x01, 0.125},
    {kE2m3, 0x07, 0.875},
    {kE2m3, 0x08, 1},
    {kE2m3, 0x1f, 7.5},
    {kE2m3, 0x3f, -7.5},
    {kE2m1, 0x1, 0.5},
    {kE2m1, 0x2, 1},
    {kE2m1, 0x3, 1.5},
    {kE2m1, 0x4, 2},
    {kE2m1, 0x5, 3},
    {kE2m1, 0x6, 4},
    {kE2m1, 0x7, 6},
    {kE2m1, 0xf, -6},
    {kS8, 0x7f, 127},
    {kS8, 0x80, -128},
    {kS8, 0xff, -1},
    {kU8, 0xff, 255},
    {kS4, 0x7, 7},
    {kS4, 0x8, -8},
    {kS4, 0xf, -1},
    {kU4, 0xf, 15},
    {kB1, 0x1, 1},
    {kS32, 0x7fffffff, 2147483647},
    {kS32, 0x80000000, -2147483648.0},
};

TEST(ElementTest, GoldenValues) {
  for (const Golden& golden : kGoldens) {
    SCOPED_TRACE(testing::Message() << NameOf(golden.type) << std::hex << " 0x" << golden.bits);
    const double value = Decode(golden.type, golden.bits);
    if (std::isnan(golden.value)) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(Decode(golden.type, Encode(golden.type, golden.value))));
    } else {
      EXPECT_EQ(value, golden.value);
      const bool saturates = std::isinf(golden.value) && BitsOf(golden.type) <= 8;
      if (!saturates) {
        EXPECT_EQ(Encode(golden.type, golden.value), golden.bits);
      }
    }
  }
}

TEST(ElementTest, Tf32IgnoresItsLow13Bits) {
  EXPECT_EQ(Decode(kTf32, 0x3f801fff), 1);
  EXPECT_EQ(Decode(kTf32, 0x7f800001), kInfinity);  // A NaN as f32.
  EXPECT_EQ(Decode(kTf32, 0x00001fff), 0);
}

TEST(ElementTest, NamesAreFoundAgain) {
  for (ElementType type : kAllElementTypes) EXPECT_EQ(ElementTypeFromName(NameOf(type)), type);
  EXPECT_EQ(ElementTypeFromName("f8"), std::nullopt);
  EXPECT_EQ(ElementTypeFromName(""), std::nullopt);
}

TEST(ElementTest, OverflowAndNan) {
  EXPECT_EQ(Encode(kF16, 65519.9), 0x7bffu);
  EXPECT_EQ(Encode(kF16, 65520), 0x7c00u);  // A tie; the even neighbour is infinity.
  EXPECT_EQ(Encode(kBf16, -0x1.ffp127), 0xff80u);
  EXPECT_EQ(Encode(kF32, 0x1.ffffffp127), 0x7f800000u);
  EXPECT_EQ(Encode(kTf32, 0x1.ffep127), 0x7f800000u);
  EXPECT_EQ(Encode(kE4m3, 1e9), 0x7eu);
  EXPECT_EQ(Encode(kE4m3, -kInfinity), 0xfeu);
  EXPECT_EQ(Encode(kE5m2, kInfinity), 0x7bu);
  EXPECT_EQ(Encode(kE3m2, kInfinity), 0x1fu);
  EXPECT_EQ(Encode(kE2m3, -1e300), 0x3fu);
  EXPECT_EQ(Encode(kE2m1, 7), 0x7u);
  for (ElementType type : {kF64, kF32, kTf32, kF16, kBf16, kE4m3, kE5m2}) {
    EXPECT_TRUE(std::isnan(Decode(type, Encode(type, kNan)))) << NameOf(type);
    EXPECT_TRUE(std::isnan(Decode(type, Encode(type, -kNan)))) << NameOf(type);
  }
  EXPECT_EQ(Encode(kE3m2, kNan), 0x1fu);
  EXPECT_EQ(Encode(kE2m3, -kNan), 0x1fu);
  EXPECT_EQ(Encode(kE2m1, kNan), 0x7u);
}

TEST(ElementTest, IntegersSaturateAndRoundTiesToEven) {
  EXPECT_EQ(Encode(kS8, 127.5), 0x7fu);
  EXPECT_EQ(Encode(kS8, -1e300), 0x80u);
  EXPECT_EQ(Encode(kS8, 2.5), 2u);
  EXPECT_EQ(Encode(kS8, 3.5), 4u);
  EXPECT_EQ(Encode(kS8, -0.5), 0u);
  EXPECT_EQ(Encode(kU8, -3), 0u);
  EXPECT_EQ(Encode(kU8, kInfinity), 0xffu);
  EXPECT_EQ(Encode(kS4, -kInfinity), 0x8u);
  EXPECT_EQ(Encode(kU4, 14.5), 14u);
  EXPECT_EQ(Encode(kB1, 0.75), 1u);
  EXPECT_EQ(Encode(kS32, 2147483647.5), 0x7fffffffu);
  EXPECT_EQ(Encode(kS32, 1e10), 0x7fffffffu);
  EXPECT_EQ(Encode(kS32, -2147483648.6), 0x80000000u);
  EXPECT_EQ(Encode(kS32, -1.5), static_cast<uint32_t>(-2));
  for (ElementType type : {kS8, kU8, kS4, kU4, kB1, kS32}) EXPECT_EQ(Encode(type, kNan), 0u);
}

// A type's bits as a code without the low bits that it ignores.
int CodeBits(ElementType type) { return type == kTf32 ? 19 : BitsOf(type); }
uint64_t FromCode(ElementType type, uint64_t code) { return type == kTf32 ? code << 13 : code; }

class SmallFloatTest : public testing::TestWithParam<ElementType> {
 protected:
  struct Value {
    double value;
    uint64_t code;
  };

  // The non-negative finite values, ascending. Their codes ascend too.
  std::vector<Value> FiniteValues() const {
    std::vector<Value> values;
    for (uint64_t code = 0; code < uint64_t{1} << (CodeBits(GetParam()) - 1); ++code) {
      const double value = Decode(GetParam(), FromCode(GetParam(), code));
      if (std::isfinite(value)) values.push_back({value, code});
    }
    return values;
  }

  // The nearest element of a magnitude, by looking it up in the list of all of them.
  uint64_t Nearest(const std::vector<Value>& values, double magnitude) const {
    const auto above =
        std::upper_bound(values.begin(), values.end(), magnitude,
                         [](double left, const Value& right) { return left < right.value; });
    const Value& low = *(above - 1);
    if (above == values.end()) {
      const double half_step = (values.back().value - values[values.size() - 2].value) / 2;
      const bool is_narrow = BitsOf(GetParam()) <= 8;
      const bool overflows = !is_narrow && magnitude >= low.value + half_step;
      return overflows ? low.code + 1 : low.code;  // Infinity follows the largest value.
    }
    const double middle = (low.value + above->value) / 2;
    if (magnitude != middle) return magnitude < middle ? low.code : above->code;
    return low.code % 2 == 0 ? low.code : above->code;
  }

  void ExpectNearest(const std::vector<Value>& values, double magnitude) const {
    const uint64_t want = FromCode(GetParam(), Nearest(values, magnitude));
    const uint64_t sign = uint64_t{1} << (BitsOf(GetParam()) - 1);
    ASSERT_EQ(Encode(GetParam(), magnitude), want) << std::hexfloat << magnitude;
    ASSERT_EQ(Encode(GetParam(), -magnitude), want | sign) << std::hexfloat << -magnitude;
    const auto single = static_cast<float>(magnitude);
    if (single != magnitude) return;
    uint64_t bits = 0;
    EncodeLine(GetParam(), &single, 1, reinterpret_cast<std::byte*>(&bits));
    ASSERT_EQ(bits, want) << std::hexfloat << single;
  }
};

TEST_P(SmallFloatTest, CodesAscendAndReturn) {
  const std::vector<Value> values = FiniteValues();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) {
      ASSERT_LT(values[i - 1].value, values[i].value);
    }
    ASSERT_EQ(values[i].code, i);
    ASSERT_EQ(Encode(GetParam(), values[i].value), FromCode(GetParam(), i));
    const uint64_t negative = FromCode(GetParam(), i) | uint64_t{1} << (BitsOf(GetParam()) - 1);
    ASSERT_EQ(Decode(GetParam(), negative), -values[i].value);
    ASSERT_EQ(Encode(GetParam(), -values[i].value), negative);  // Zeros keep their sign.
  }
}

TEST_P(SmallFloatTest, RoundsToNearestTiesToEven) {
  const std::vector<Value> values = FiniteValues();
  for (size_t i = 0; i < values.size(); ++i) {
    const double next =
        i + 1 < values.size() ? values[i + 1].value : 2 * values[i].value - values[i - 1].value;
    const double middle = (values[i].value + next) / 2;
    for (double magnitude : {values[i].value, std::nextafter(values[i].value, kInfinity), middle,
                             std::nextafter(middle, 0), std::nextafter(middle, kInfinity),
                             static_cast<double>(std::nextafter(static_cast<float>(middle), 0.f)),
                             static_cast<double>(std::nextafter(static_cast<float>(middle), 1e38f)),
                             std::nextafter(next, 0)}) {
      ExpectNearest(values, magnitude);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SmallFloatTest, RoundsAnyDouble) {
  RandomSource random;
  SCOPED_TRACE(random.trace());
  const std::vector<Value> values = FiniteValues();
  for (int i = 0; i < 100000; ++i) {
    ExpectNearest(values, std::fabs(random.AnyMagnitude(-160, 140)));
    ExpectNearest(values,
                  std::fabs(static_cast<double>(static_cast<float>(random.AnyMagnitude(-30, 20)))));
    if (HasFatalFailure()) return;
  }
  for (double magnitude : {0.0, 0x1p-1074, 0x1p-1022, 1e308, kInfinity}) {
    ExpectNearest(values, magnitude);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SmallFloatTest,
                         testing::Values(kTf32, kF16, kBf16, kE4m3, kE5m2, kE3m2, kE2m3, kE2m1),
                         PrintType);

}  // namespace
}  // namespace gemmd
