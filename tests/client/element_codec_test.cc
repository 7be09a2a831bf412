// SPDX-License-Identifier: Apache-2.0
//
// The client's own codec of element values.
#include "gemmd/element_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "client/matrix/random_matrix.h"
#include "gemmd/element_type.h"
#include "gemmd/v1/tensors.pb.h"
#include "tests/testing/special_values.h"

namespace gemmd {
namespace {

constexpr v1::ElementType kSmallFloats[] = {
    v1::ELEMENT_TYPE_F16,  v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_E4M3, v1::ELEMENT_TYPE_E5M2,
    v1::ELEMENT_TYPE_E3M2, v1::ELEMENT_TYPE_E2M3, v1::ELEMENT_TYPE_E2M1};

struct Known {
  v1::ElementType type;
  uint64_t pattern;
  double value;
};

// From the definitions of the formats: OCP 8-bit and Microscaling formats, IEEE 754.
constexpr Known kKnown[] = {{v1::ELEMENT_TYPE_F64, 0x3ff8000000000000, 1.5},
                            {v1::ELEMENT_TYPE_F32, 0xc0490fdb, -3.1415927410125732},
                            {v1::ELEMENT_TYPE_F32, 0x00000001, 0x1p-149},
                            {v1::ELEMENT_TYPE_TF32, 0x3f802000, 1.0009765625},
                            {v1::ELEMENT_TYPE_F16, 0x0001, 0x1p-24},
                            {v1::ELEMENT_TYPE_F16, 0x7bff, 65504},
                            {v1::ELEMENT_TYPE_F16, 0xfc00, -kInfinity},
                            {v1::ELEMENT_TYPE_BF16, 0x3f80, 1},
                            {v1::ELEMENT_TYPE_BF16, 0x0001, 0x1p-133},
                            {v1::ELEMENT_TYPE_BF16, 0x7f80, kInfinity},
                            {v1::ELEMENT_TYPE_E4M3, 0x7e, 448},
                            {v1::ELEMENT_TYPE_E4M3, 0x01, 0x1p-9},
                            {v1::ELEMENT_TYPE_E4M3, 0x38, 1},
                            {v1::ELEMENT_TYPE_E5M2, 0x7b, 57344},
                            {v1::ELEMENT_TYPE_E5M2, 0x01, 0x1p-16},
                            {v1::ELEMENT_TYPE_E5M2, 0x7c, kInfinity},
                            {v1::ELEMENT_TYPE_E3M2, 0x1f, 28},
                            {v1::ELEMENT_TYPE_E3M2, 0x01, 0.0625},
                            {v1::ELEMENT_TYPE_E2M3, 0x1f, 7.5},
                            {v1::ELEMENT_TYPE_E2M3, 0x01, 0.125},
                            {v1::ELEMENT_TYPE_E2M1, 0x7, 6},
                            {v1::ELEMENT_TYPE_E2M1, 0x1, 0.5},
                            {v1::ELEMENT_TYPE_E2M1, 0xf, -6},
                            {v1::ELEMENT_TYPE_S8, 0x80, -128},
                            {v1::ELEMENT_TYPE_U8, 0xff, 255},
                            {v1::ELEMENT_TYPE_S4, 0x8, -8},
                            {v1::ELEMENT_TYPE_U4, 0xf, 15},
                            {v1::ELEMENT_TYPE_B1, 1, 1},
                            {v1::ELEMENT_TYPE_S32, 0x80000000, -2147483648.0}};

// The names in the wire contract identify the types.
TEST(ElementTypeTest, TypesHaveTheirNamesOnTheWire) {
  int count = 0;
  for (int number = 1; v1::ElementType_IsValid(number); ++number, ++count) {
    const auto type = static_cast<v1::ElementType>(number);
    const std::string name(ElementTypeName(type));
    EXPECT_EQ("ELEMENT_TYPE_" + absl::AsciiStrToUpper(name), v1::ElementType_Name(type));
    EXPECT_EQ(ParseElementType(name), type);
  }
  EXPECT_EQ(count, v1::ElementType_MAX);
  EXPECT_EQ(ElementTypeName(v1::ELEMENT_TYPE_UNSPECIFIED), "unspecified");
  EXPECT_EQ(ElementBits(v1::ELEMENT_TYPE_UNSPECIFIED), 0);
  EXPECT_EQ(ParseElementType("unspecified"), std::nullopt);
}

TEST(ElementCodecTest, KnowsTheLandmarks) {
  for (const Known& known : kKnown) {
    EXPECT_EQ(ElementValue(known.type, known.pattern), known.value) << ElementTypeName(known.type);
    // e5m2 saturates, so its infinity is never written.
    if (known.type == v1::ELEMENT_TYPE_E5M2 && std::isinf(known.value)) continue;
    EXPECT_EQ(ElementPattern(known.type, known.value), known.pattern)
        << ElementTypeName(known.type);
  }
}

TEST(ElementCodecTest, EveryNarrowPatternSurvives) {
  for (int i = 1; i < v1::ElementType_ARRAYSIZE; ++i) {
    const auto type = static_cast<v1::ElementType>(i);
    if (ElementBits(type) > 16) continue;
    for (uint64_t pattern = 0; pattern < uint64_t{1} << ElementBits(type); ++pattern) {
      const double value = ElementValue(type, pattern);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(ElementPattern(type, value), pattern) << ElementTypeName(type);
    }
  }
}

TEST(ElementCodecTest, RoundsToNearestTiesToEven) {
  for (const v1::ElementType type : kSmallFloats) {
    const uint64_t magnitudes = uint64_t{1} << (ElementBits(type) - 1);
    for (uint64_t low = 0; low + 1 < magnitudes; ++low) {
      const double below = ElementValue(type, low);
      const double above = ElementValue(type, low + 1);
      if (!std::isfinite(below) || !std::isfinite(above)) continue;
      const double middle = (below + above) / 2;  // Exact in f64.
      ASSERT_EQ(ElementPattern(type, middle), low + low % 2) << ElementTypeName(type) << " " << low;
      ASSERT_EQ(ElementPattern(type, std::nextafter(middle, 0)), low);
      ASSERT_EQ(ElementPattern(type, std::nextafter(middle, kInfinity)), low + 1);
      ASSERT_EQ(ElementPattern(type, -middle), magnitudes | (low + low % 2));
    }
  }
}

TEST(ElementCodecTest, OverflowsAsTheContractSays) {
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_F16, 65519), 65504);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_F16, 65520), kInfinity);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_BF16, -1e300), -kInfinity);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_F32, 1e300), kInfinity);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_TF32, 1e300), kInfinity);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_E4M3, 1e300), 448);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_E4M3, -kInfinity), -448);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_E5M2, kInfinity), 57344);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_E3M2, 29), 28);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_E2M3, -100), -7.5);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_E2M1, 100), 6);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_S8, 127.5), 127);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_S8, -kInfinity), -128);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_U8, -1), 0);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_S32, 1e300), 2147483647);
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_S8, 2.5), 2);
}

TEST(ElementCodecTest, TellsValuesBeyondTheRangeFromThoseThatRoundIntoIt) {
  struct Edge {
    v1::ElementType type;
    double within;
    double beyond;
  };
  // Half a unit above the largest value is a tie. It rounds to the largest value of e4m3, whose
  // fraction is even, and beyond the largest value of the other types.
  const Edge edges[] = {
      {v1::ELEMENT_TYPE_F16, std::nextafter(65520, 0), 65520},
      {v1::ELEMENT_TYPE_E4M3, 464, std::nextafter(464, 500)},
      {v1::ELEMENT_TYPE_E5M2, std::nextafter(61440, 0), 61440},
      {v1::ELEMENT_TYPE_E3M2, std::nextafter(30, 0), 30},
      {v1::ELEMENT_TYPE_E2M3, std::nextafter(7.75, 0), 7.75},
      {v1::ELEMENT_TYPE_E2M1, std::nextafter(7, 0), 7},
      {v1::ELEMENT_TYPE_S8, std::nextafter(127.5, 0), 127.5},
      {v1::ELEMENT_TYPE_U8, -0.5, -0.75},
      {v1::ELEMENT_TYPE_S4, -8.5, -8.75},
      {v1::ELEMENT_TYPE_S32, -2147483648.5, -2147483649.0},
  };
  for (const Edge& edge : edges) {
    EXPECT_FALSE(ExceedsRange(edge.type, edge.within)) << ElementTypeName(edge.type);
    EXPECT_TRUE(ExceedsRange(edge.type, edge.beyond)) << ElementTypeName(edge.type);
    EXPECT_TRUE(ExceedsRange(edge.type, kInfinity)) << ElementTypeName(edge.type);
    EXPECT_FALSE(ExceedsRange(edge.type, kNan)) << ElementTypeName(edge.type);
  }
  EXPECT_FALSE(ExceedsRange(v1::ELEMENT_TYPE_F64, std::numeric_limits<double>::max()));
}

TEST(ElementCodecTest, KeepsNanWhereThereIsOne) {
  for (const v1::ElementType type :
       {v1::ELEMENT_TYPE_F64, v1::ELEMENT_TYPE_F32, v1::ELEMENT_TYPE_TF32, v1::ELEMENT_TYPE_F16,
        v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_E4M3, v1::ELEMENT_TYPE_E5M2}) {
    EXPECT_TRUE(HasNan(type));
    EXPECT_TRUE(std::isnan(RoundToElement(type, kNan))) << ElementTypeName(type);
  }
  EXPECT_FALSE(HasNan(v1::ELEMENT_TYPE_E2M1));
  EXPECT_EQ(RoundToElement(v1::ELEMENT_TYPE_S8, kNan), 0);
}

TEST(ElementCodecTest, Tf32IgnoresItsLowBits) {
  EXPECT_EQ(ElementValue(v1::ELEMENT_TYPE_TF32, 0x3f801fff), 1);
  EXPECT_EQ(ElementPattern(v1::ELEMENT_TYPE_TF32, 1.0000001), 0x3f800000u);
}

TEST(ElementCodecTest, LoadsWhatItStores) {
  for (int i = 1; i < v1::ElementType_ARRAYSIZE; ++i) {
    const auto type = static_cast<v1::ElementType>(i);
    const int bits = ElementBits(type);
    constexpr int kCount = 11;
    std::string line((kCount * static_cast<size_t>(bits) + 7) / 8, '\0');
    const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
    const auto pattern_at = [&](int64_t index) {
      return static_cast<uint64_t>(index + 1) * 0x9e3779b97f4a7c15 & mask;
    };
    for (int64_t j = 0; j < kCount; ++j) StoreElement(type, pattern_at(j), j, line.data());
    for (int64_t j = 0; j < kCount; ++j) {
      EXPECT_EQ(LoadElement(type, line, j), pattern_at(j)) << ElementTypeName(type) << " " << j;
    }
  }
}

TEST(RandomLinesTest, LooksLikeItsDistribution) {
  constexpr int64_t kCount = 20000;
  const std::string normal = RandomLines(v1::ELEMENT_TYPE_F32, kCount, 1, 1);
  ASSERT_EQ(normal.size(), static_cast<size_t>(kCount) * 4);
  double sum = 0;
  double squares = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double value =
        ElementValue(v1::ELEMENT_TYPE_F32, LoadElement(v1::ELEMENT_TYPE_F32, normal, i));
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += value * value;
  }
  // Six standard deviations of the estimates: 1/sqrt(n) and sqrt(2/n).
  EXPECT_LE(std::fabs(sum / kCount), 6 / std::sqrt(double{kCount}));
  EXPECT_LE(std::fabs(squares / kCount - 1), 6 * std::sqrt(2.0 / kCount));

  std::vector<int> seen(16);
  const std::string nibbles = RandomLines(v1::ELEMENT_TYPE_S4, kCount, 1, 1);
  for (int64_t i = 0; i < kCount; ++i) ++seen[LoadElement(v1::ELEMENT_TYPE_S4, nibbles, i)];
  for (int count : seen) EXPECT_GT(count, kCount / 32);
}

TEST(RandomLinesTest, DependsOnTheSeedAlone) {
  EXPECT_EQ(RandomLines(v1::ELEMENT_TYPE_BF16, 7, 3, 5),
            RandomLines(v1::ELEMENT_TYPE_BF16, 7, 3, 5));
  EXPECT_NE(RandomLines(v1::ELEMENT_TYPE_BF16, 7, 3, 5),
            RandomLines(v1::ELEMENT_TYPE_BF16, 7, 3, 6));
  EXPECT_EQ(RandomLines(v1::ELEMENT_TYPE_E3M2, 3, 4, 1).size(), 12u);
  EXPECT_EQ(RandomLines(v1::ELEMENT_TYPE_B1, 9, 2, 1).size(), 4u);
  EXPECT_EQ(RandomLines(v1::ELEMENT_TYPE_F64, 0, 5, 1), "");
}

}  // namespace
}  // namespace gemmd
