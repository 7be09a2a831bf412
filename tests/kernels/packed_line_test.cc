// SPDX-License-Identifier: Apache-2.0
//
// Packed lines of every type and of every length up to a few bytes, among poisoned neighbours.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/matrix/element.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

constexpr std::byte kPoison{0xa5};
constexpr int64_t kMaxCount = 41;
constexpr int64_t kSpare = 16;

// Bit by bit, as in the contract: bit b of the line is bit b % 8 of byte b / 8.
uint64_t BitsAt(ElementType type, const std::vector<std::byte>& line, int64_t index) {
  uint64_t bits = 0;
  for (int64_t b = 0; b < BitsOf(type); ++b) {
    const int64_t position = index * BitsOf(type) + b;
    const auto byte = static_cast<uint64_t>(line[static_cast<size_t>(position / 8)]);
    bits |= (byte >> position % 8 & 1) << b;
  }
  return bits;
}

int64_t LineBytes(ElementType type, int64_t count) { return (count * BitsOf(type) + 7) / 8; }

class PackedLineTest : public testing::TestWithParam<ElementType> {
 protected:
  std::vector<std::byte> Poisoned(int64_t count) const {
    return std::vector<std::byte>(static_cast<size_t>(LineBytes(GetParam(), count) + kSpare),
                                  kPoison);
  }

  std::vector<std::byte> RandomLine(int64_t count) {
    std::vector<std::byte> line = Poisoned(count);
    for (std::byte& byte : line) byte = static_cast<std::byte>(random_.Bits());
    return line;
  }

  // Whether two values are equal, or both NaN.
  static bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

  template <typename T>
  void ExpectDecodes(int64_t count) {
    const std::vector<std::byte> line = RandomLine(count);
    std::vector<T> values(static_cast<size_t>(count + kSpare), T{42});
    DecodeLine(GetParam(), line.data(), count, values.data());
    for (int64_t i = 0; i < count; ++i) {
      const double want = Decode(GetParam(), BitsAt(GetParam(), line, i));
      EXPECT_TRUE(Same(values[static_cast<size_t>(i)], static_cast<T>(want))) << i << ": " << want;
    }
    for (int64_t i = count; i < count + kSpare; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], 42);
  }

  template <typename T>
  void ExpectEncodes(int64_t count) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<T>(Decode(GetParam(), random_.Bits())));
      if (std::isnan(values.back())) values.back() = 1;
    }
    std::vector<std::byte> line = Poisoned(count);
    EncodeLine(GetParam(), values.data(), count, line.data());
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(BitsAt(GetParam(), line, i), Encode(GetParam(), values[static_cast<size_t>(i)]))
          << i;
    }
    const int64_t bytes = LineBytes(GetParam(), count);
    for (int64_t b = count * BitsOf(GetParam()); b < 8 * bytes; ++b) {
      EXPECT_EQ(static_cast<int>(line[static_cast<size_t>(b / 8)]) >> b % 8 & 1, 0) << "bit " << b;
    }
    for (int64_t i = bytes; i < bytes + kSpare; ++i) {
      EXPECT_EQ(line[static_cast<size_t>(i)], kPoison);
    }
  }

  RandomSource random_;
};

TEST_P(PackedLineTest, Decodes) {
  SCOPED_TRACE(random_.trace());
  for (int64_t count = 0; count <= kMaxCount; ++count) {
    ExpectDecodes<float>(count);
    ExpectDecodes<double>(count);
  }
}

TEST_P(PackedLineTest, EncodesAndClearsTheLastByte) {
  SCOPED_TRACE(random_.trace());
  for (int64_t count = 0; count <= kMaxCount; ++count) {
    ExpectEncodes<float>(count);
    ExpectEncodes<double>(count);
  }
}

TEST_P(PackedLineTest, LoadsAndStoresOneElementAndNoOther) {
  SCOPED_TRACE(random_.trace());
  std::vector<std::byte> line = RandomLine(kMaxCount);
  for (int64_t i = 0; i < kMaxCount; ++i) {
    const std::vector<std::byte> before = line;
    EXPECT_EQ(LoadBits(GetParam(), line.data(), i), BitsAt(GetParam(), line, i));
    const uint64_t stored = random_.Bits();
    StoreBits(GetParam(), line.data(), i, stored);
    for (int64_t j = 0; j < kMaxCount; ++j) {
      const uint64_t mask = ~uint64_t{0} >> (64 - BitsOf(GetParam()));
      EXPECT_EQ(BitsAt(GetParam(), line, j),
                j == i ? stored & mask : BitsAt(GetParam(), before, j));
    }
    EXPECT_TRUE(std::equal(line.end() - kSpare, line.end(), before.end() - kSpare));
  }
}

// f64 and s32 do not fit into f32 and are rounded.
TEST(DecodeLineTest, RoundsToF32) {
  const double wide = 1 + 0x1p-24 + 0x1p-50;
  const int32_t integer = 16777217;
  float value = 0;
  DecodeLine(ElementType::kF64, reinterpret_cast<const std::byte*>(&wide), 1, &value);
  EXPECT_EQ(value, 1 + 0x1p-23f);
  DecodeLine(ElementType::kS32, reinterpret_cast<const std::byte*>(&integer), 1, &value);
  EXPECT_EQ(value, 16777216);
}

std::string PrintPackedType(const testing::TestParamInfo<ElementType>& type) {
  return std::string(NameOf(type.param));
}

INSTANTIATE_TEST_SUITE_P(Types, PackedLineTest, testing::ValuesIn(kAllElementTypes),
                         PrintPackedType);

}  // namespace
}  // namespace gemmd
