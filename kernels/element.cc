// SPDX-License-Identifier: Apache-2.0
#include "kernels/element.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace gemmd {
namespace {

constexpr int64_t kGroup = 8;  // Elements that fill whole bytes, whatever their width.

constexpr double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// Floats narrower than f32; every subnormal of theirs is a normal f64.
constexpr double DecodeNarrowFloat(ElementType type, uint64_t bits) {
  const FloatFormat format = FactsOf(type).format;
  const int width = 1 + format.exponent_bits + format.fraction_bits;
  const uint64_t sign = bits >> (width - 1) & 1;
  const uint64_t magnitude = bits & ((uint64_t{1} << (width - 1)) - 1);
  const uint64_t exponent = magnitude >> format.fraction_bits;
  const uint64_t fraction = magnitude & ((uint64_t{1} << format.fraction_bits) - 1);
  const uint64_t top_exponent = (uint64_t{1} << format.exponent_bits) - 1;
  const bool is_all_ones = magnitude == (uint64_t{1} << (width - 1)) - 1;

  uint64_t word = 0;
  if (format.has_infinity && exponent == top_exponent) {
    word = uint64_t{0x7ff} << 52 | fraction << (52 - format.fraction_bits);
  } else if (format.has_nan && is_all_ones) {
    word = uint64_t{0x7ff8} << 48;
  } else if (exponent == 0) {
    word = std::bit_cast<uint64_t>(static_cast<double>(fraction) *
                                   PowerOfTwo(1 - format.bias - format.fraction_bits));
  } else {
    word = (exponent + 1023 - static_cast<uint64_t>(format.bias)) << 52 |
           fraction << (52 - format.fraction_bits);
  }
  return std::bit_cast<double>(word | sign << 63);
}

constexpr double DecodeInteger(ElementType type, uint64_t bits) {
  const int unused = 64 - BitsOf(type);
  if (!FactsOf(type).is_signed) return static_cast<double>(bits << unused >> unused);
  return static_cast<double>(static_cast<int64_t>(bits << unused) >> unused);
}

constexpr double DecodeAny(ElementType type, uint64_t bits) {
  switch (type) {
    case ElementType::kF64: return std::bit_cast<double>(bits);
    case ElementType::kF32: return std::bit_cast<float>(static_cast<uint32_t>(bits));
    case ElementType::kTf32:
      return std::bit_cast<float>(static_cast<uint32_t>(bits) & ~uint32_t{0x1fff});
    default: return IsFloat(type) ? DecodeNarrowFloat(type, bits) : DecodeInteger(type, bits);
  }
}

// The values of all codes of a type of at most 8 bits.
template <ElementType kType>
constexpr std::array<float, size_t{1} << BitsOf(kType)> MakeTable() {
  std::array<float, size_t{1} << BitsOf(kType)> table = {};
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = static_cast<float>(DecodeAny(kType, code));
  }
  return table;
}

template <ElementType kType>
inline constexpr auto kTable = MakeTable<kType>();

// The codes of eight elements, loaded at full width: a variable size would go through memory.
template <int kBits>
uint64_t LoadGroup(const std::byte* line) {
  if constexpr (kBits == 6) {
    uint32_t low = 0;
    uint16_t high = 0;
    std::memcpy(&low, line, sizeof(low));
    std::memcpy(&high, line + sizeof(low), sizeof(high));
    return low | uint64_t{high} << 32;
  } else {
    using Word =
        std::conditional_t<kBits == 8, uint64_t, std::conditional_t<kBits == 4, uint32_t, uint8_t>>;
    Word word = 0;
    std::memcpy(&word, line, sizeof(word));
    return word;
  }
}

template <ElementType kType, typename T>
void DecodeTabled(const std::byte* line, int64_t count, T* values) {
  constexpr int kBits = BitsOf(kType);
  constexpr uint64_t kMask = ~uint64_t{0} >> (64 - kBits);
  const int64_t whole = count / kGroup * kGroup;
  for (int64_t i = 0; i < whole; i += kGroup, line += kBits) {
    const uint64_t codes = LoadGroup<kBits>(line);
    for (int64_t e = 0; e < kGroup; ++e) values[i + e] = kTable<kType>[codes >> e * kBits & kMask];
  }
  uint64_t codes = 0;
  std::memcpy(&codes, line, static_cast<size_t>((count - whole) * kBits + 7) / 8);
  for (int64_t i = whole; i < count; ++i, codes >>= kBits) {
    values[i] = kTable<kType>[codes & kMask];
  }
}

template <typename Word>
Word LoadWord(const std::byte* line, int64_t index) {
  Word word;
  std::memcpy(&word, line + index * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
  return word;
}

// f16 without branches: exponent and fraction moved to their places in an f32, whose exponent is
// then too small by 127 - 15. Multiplying by 2^112 mends that and normalises subnormals, exactly.
float DecodeF16(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  return std::bit_cast<float>(sign | (magnitude >= 0x0f800000 ? special : scaled));
}

float DecodeBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float DecodeTf32(uint32_t bits) { return std::bit_cast<float>(bits & ~uint32_t{0x1fff}); }

template <typename T>
void DecodeLineAs(ElementType type, const std::byte* line, int64_t count, T* values) {
  switch (type) {
    case ElementType::kF64:
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(LoadWord<double>(line, i));
      return;
    case ElementType::kF32:
      for (int64_t i = 0; i < count; ++i) values[i] = LoadWord<float>(line, i);
      return;
    case ElementType::kTf32:
      for (int64_t i = 0; i < count; ++i) values[i] = DecodeTf32(LoadWord<uint32_t>(line, i));
      return;
    case ElementType::kF16:
      for (int64_t i = 0; i < count; ++i) values[i] = DecodeF16(LoadWord<uint16_t>(line, i));
      return;
    case ElementType::kBf16:
      for (int64_t i = 0; i < count; ++i) values[i] = DecodeBf16(LoadWord<uint16_t>(line, i));
      return;
    case ElementType::kS32:
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(LoadWord<int32_t>(line, i));
      return;
    case ElementType::kE4m3: return DecodeTabled<ElementType::kE4m3>(line, count, values);
    case ElementType::kE5m2: return DecodeTabled<ElementType::kE5m2>(line, count, values);
    case ElementType::kE3m2: return DecodeTabled<ElementType::kE3m2>(line, count, values);
    case ElementType::kE2m3: return DecodeTabled<ElementType::kE2m3>(line, count, values);
    case ElementType::kE2m1: return DecodeTabled<ElementType::kE2m1>(line, count, values);
    case ElementType::kS8: return DecodeTabled<ElementType::kS8>(line, count, values);
    case ElementType::kU8: return DecodeTabled<ElementType::kU8>(line, count, values);
    case ElementType::kS4: return DecodeTabled<ElementType::kS4>(line, count, values);
    case ElementType::kU4: return DecodeTabled<ElementType::kU4>(line, count, values);
    case ElementType::kB1: return DecodeTabled<ElementType::kB1>(line, count, values);
  }
}

}  // namespace

std::optional<ElementType> ElementTypeFromName(std::string_view name) {
  for (ElementType type : kAllElementTypes) {
    if (NameOf(type) == name) return type;
  }
  return std::nullopt;
}

double Decode(ElementType type, uint64_t bits) { return DecodeAny(type, bits); }

uint64_t LoadBits(ElementType type, const std::byte* line, int64_t index) {
  const int64_t width = BitsOf(type);
  const int64_t first = index * width;
  uint64_t word = 0;  // An element narrower than a byte may lie in two of them.
  std::memcpy(&word, line + first / 8, static_cast<size_t>((first % 8 + width + 7) / 8));
  return width == 64 ? word : word >> first % 8 & ((uint64_t{1} << width) - 1);
}

void StoreBits(ElementType type, std::byte* line, int64_t index, uint64_t bits) {
  const int64_t width = BitsOf(type);
  const int64_t first = index * width;
  const size_t bytes = static_cast<size_t>((first % 8 + width + 7) / 8);
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  uint64_t word = 0;
  std::memcpy(&word, line + first / 8, bytes);
  word = (word & ~(mask << first % 8)) | (bits & mask) << first % 8;
  std::memcpy(line + first / 8, &word, bytes);
}

void DecodeLine(ElementType type, const std::byte* line, int64_t count, float* values) {
  DecodeLineAs(type, line, count, values);
}

void DecodeLine(ElementType type, const std::byte* line, int64_t count, double* values) {
  DecodeLineAs(type, line, count, values);
}

}  // namespace gemmd
