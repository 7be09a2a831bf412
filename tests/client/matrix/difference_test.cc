// SPDX-License-Identifier: Apache-2.0
//
// Distances between elements, and what is found where two matrices differ.
#include "client/matrix/difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gemmd/v1/tensors.pb.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();

uint64_t Bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TEST(ElementDistanceTest, CountsStepsOfTheType) {
  const struct {
    v1::ElementType type;
    uint64_t a;
    uint64_t b;
    uint64_t ulps;
    double absolute;
  } cases[] = {
      {v1::ELEMENT_TYPE_F32, Bits(1), Bits(std::nextafterf(1, 2)), 1, 0x1p-23},
      {v1::ELEMENT_TYPE_F32, Bits(-0.0f), Bits(0), 0, 0},
      {v1::ELEMENT_TYPE_F32, Bits(-0x1p-149f), Bits(0x1p-149f), 2, 0x1p-148},
      {v1::ELEMENT_TYPE_F32, Bits(std::numeric_limits<float>::max()), Bits(kFloatInfinity), 1,
       kFloatInfinity},
      {v1::ELEMENT_TYPE_F64, 0xffefffffffffffff, 0x7fefffffffffffff, 0xffdffffffffffffe,
       kFloatInfinity},
      // The last 13 bits of a tf32 are ignored.
      {v1::ELEMENT_TYPE_TF32, 0x3f800000, 0x3f801fff, 0, 0},
      {v1::ELEMENT_TYPE_TF32, 0x3f800000, 0x3f802000, 1, 0x1p-10},
      {v1::ELEMENT_TYPE_E4M3, 0x7e, 0x7d, 1, 32},
      {v1::ELEMENT_TYPE_E2M1, 0x8 | 1, 1, 2, 1},
      {v1::ELEMENT_TYPE_S8, 0x80, 0x7f, 255, 255},
      {v1::ELEMENT_TYPE_U4, 0, 15, 15, 15},
      {v1::ELEMENT_TYPE_S32, 0x80000000, 0x7fffffff, 0xffffffff, 0xffffffff},
      {v1::ELEMENT_TYPE_B1, 0, 1, 1, 1},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << ElementTypeName(c.type) << " " << c.a << " " << c.b);
    for (const ElementDistance& distance :
         {DistanceOf(c.type, c.a, c.b), DistanceOf(c.type, c.b, c.a)}) {
      EXPECT_EQ(distance.ulps, c.ulps);
      EXPECT_EQ(distance.absolute, c.absolute);
    }
  }
  EXPECT_EQ(DistanceOf(v1::ELEMENT_TYPE_F32, Bits(-4), Bits(-5)).relative, 0.25);
  EXPECT_EQ(DistanceOf(v1::ELEMENT_TYPE_F32, Bits(0), Bits(5)).relative, kFloatInfinity);
}

TEST(ElementDistanceTest, NanIsNoDistanceFromAnything) {
  for (const float other : {0.0f, kFloatInfinity, kFloatNan}) {
    const ElementDistance distance =
        DistanceOf(v1::ELEMENT_TYPE_F32, Bits(kFloatNan) | 1, Bits(other));
    EXPECT_EQ(distance.ulps, std::nullopt);
    EXPECT_TRUE(std::isnan(distance.absolute));
    EXPECT_TRUE(std::isnan(distance.relative));
  }
}

class DifferenceTest : public testing::Test {
 protected:
  // `batch` matrices of f32 with two rows. Each call's bytes stay until the test ends.
  PackedMatrix Floats(int64_t batch, const std::vector<float>& values) {
    bytes_.emplace_back(reinterpret_cast<const char*>(values.data()),
                        values.size() * sizeof(float));
    return {.type = v1::ELEMENT_TYPE_F32,
            .batch = batch,
            .rows = 2,
            .columns = static_cast<int64_t>(values.size()) / batch / 2,
            .data = bytes_.back()};
  }

  std::vector<std::string> bytes_ = Reserved();

 private:
  // Views of strings become invalid when a vector moves its strings.
  static std::vector<std::string> Reserved() {
    std::vector<std::string> strings;
    strings.reserve(8);
    return strings;
  }
};

std::vector<std::vector<int64_t>> PlacesOf(const Difference& found) {
  std::vector<std::vector<int64_t>> places;
  for (const DifferingElement& element : found.worst) {
    places.push_back({element.batch, element.row, element.column});
  }
  return places;
}

TEST_F(DifferenceTest, CountsAndRanksWhatDiffers) {
  const float next = std::nextafterf(1, 2);
  const PackedMatrix a = Floats(2, {1, 2, 3, 4, 0.0f, kFloatNan, 1, kFloatNan});
  const PackedMatrix b = Floats(2, {1, 2, 3.5f, 4, -0.0f, kFloatNan, next, 7});
  const auto found = Compare(a, b);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->total, 8);
  EXPECT_EQ(found->differing, 4);
  EXPECT_EQ(found->nan, 1);
  EXPECT_EQ(found->matrices, 2);
  EXPECT_EQ(found->max_ulps, uint64_t{1} << 21);
  EXPECT_EQ(found->max_absolute, 0.5);
  EXPECT_EQ(found->max_relative, 0.5 / 3);
  EXPECT_EQ(found->by_ulps[0], 1);
  EXPECT_EQ(found->by_ulps[1], 1);
  EXPECT_EQ(found->by_ulps[22], 1);
  using Place = std::vector<int64_t>;
  EXPECT_THAT(PlacesOf(*found),
              ElementsAre(Place{1, 1, 1}, Place{0, 1, 0}, Place{1, 1, 0}, Place{1, 0, 0}));
  EXPECT_EQ(found->worst[0].b, Bits(7));
  ASSERT_EQ(found->maps.size(), 2u);
  EXPECT_EQ(found->maps[0].At(1, 0).max_ulps, uint64_t{1} << 21);
  EXPECT_EQ(found->maps[1].At(1, 1).nan, 1);
  EXPECT_EQ(found->maps[1].At(0, 1).differing, 0);
  const auto fewer = Compare(a, b, {.max_worst = 2, .max_maps = 1});
  EXPECT_THAT(PlacesOf(*fewer), ElementsAre(Place{1, 1, 1}, Place{0, 1, 0}));
  EXPECT_EQ(fewer->maps.size(), 1u);
  EXPECT_EQ(fewer->matrices, 2);
  EXPECT_THAT(PlacesOf(*Compare(a, b, {.max_worst = 0})), ElementsAre());
}

TEST_F(DifferenceTest, OrdersAreNoDifference) {
  const PackedMatrix rows = Floats(1, {1, 2, 3, 4, 5, 6});
  PackedMatrix columns = Floats(1, {1, 4, 2, 5, 3, 7});
  columns.order = v1::ORDER_COLUMN_MAJOR;
  for (const auto& found : {Compare(rows, columns), Compare(columns, rows)}) {
    ASSERT_THAT(found, IsOk());
    EXPECT_EQ(found->differing, 1);
    EXPECT_EQ(found->worst[0].row, 1);
    EXPECT_EQ(found->worst[0].column, 2);
  }
}

TEST_F(DifferenceTest, EqualBytesInOtherOrdersAreADifference) {
  const PackedMatrix rows = Floats(1, {1, 2, 3, 4});
  PackedMatrix columns = rows;
  columns.order = v1::ORDER_COLUMN_MAJOR;
  const auto found = Compare(rows, columns);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->differing, 2);
}

TEST_F(DifferenceTest, PaddingOfPackedLinesIsNoDifference) {
  // Two rows of three 4-bit elements: the last four bits of each row are padding.
  PackedMatrix a = {.type = v1::ELEMENT_TYPE_U4, .rows = 2, .columns = 3};
  a.data = absl::string_view("\x21\x03\x54\x06", 4);
  PackedMatrix b = a;
  b.data = absl::string_view("\x21\xf3\x54\x08", 4);
  const auto found = Compare(a, b);
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->differing, 1);
  EXPECT_EQ(found->worst[0].row, 1);
  EXPECT_EQ(found->worst[0].column, 2);
  EXPECT_EQ(found->worst[0].a, 6u);
  EXPECT_EQ(found->worst[0].b, 8u);
}

TEST_F(DifferenceTest, RefusesWhatCannotBeCompared) {
  const PackedMatrix a = Floats(1, {1, 2, 3, 4});
  PackedMatrix b = Floats(1, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(Compare(a, b).status().message(), HasSubstr("b: got 2 x 3, want 2 x 2 as a has"));
  b = a;
  b.type = v1::ELEMENT_TYPE_S32;
  EXPECT_THAT(Compare(a, b).status().message(), HasSubstr("b: got type s32, want f32 as a has"));
  b = a;
  b.data = b.data.substr(1);
  EXPECT_THAT(Compare(a, b).status().message(), HasSubstr("b.data: got 15 bytes"));
}

TEST(DifferenceMapTest, CutsIntoBlocksAndFlattens) {
  DifferenceMap map(3, 10, 129, 4, 64);
  EXPECT_EQ(map.block_rows(), 3);
  EXPECT_EQ(map.down(), 4);
  EXPECT_EQ(map.block_columns(), 3);
  EXPECT_EQ(map.across(), 43);
  map.Add(9, 128, {.ulps = 5});
  map.Add(6, 128, {.ulps = std::nullopt});
  EXPECT_EQ(map.At(3, 42).max_ulps, 5u);
  EXPECT_EQ(map.At(2, 42).nan, 1);
  const DifferenceMap flat = map.Flattened(3);
  EXPECT_EQ(flat.down(), 2);
  EXPECT_EQ(flat.block_rows(), 9);
  EXPECT_EQ(flat.At(1, 42).max_ulps, 5u);
  EXPECT_EQ(flat.At(0, 42).differing, 1);
}

}  // namespace
}  // namespace gemmd
