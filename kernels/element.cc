// SPDX-License-Identifier: Apache-2.0
#include "kernels/element.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/element_codes.h"

namespace gemmd {
namespace {

constexpr int64_t kGroup = 8;  // Elements that fill whole bytes, whatever their width.

// The values of all codes of a type of at most 8 bits.
template <ElementType kType>
constexpr std::array<float, size_t{1} << BitsOf(kType)> MakeTable() {
  std::array<float, size_t{1} << BitsOf(kType)> table = {};
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = DecodeCode<kType>(code);
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

// Decodes types of whole bytes that no table holds.
template <ElementType kType, typename Word, typename T>
void DecodeWords(const std::byte* line, int64_t count, T* values) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(DecodeCode<kType>(LoadWord<Word>(line, i)));
  }
}

template <typename T>
void DecodeLineAs(ElementType type, const std::byte* line, int64_t count, T* values) {
  using enum ElementType;
  switch (type) {
    case kF64: return DecodeWords<kF64, uint64_t>(line, count, values);
    case kF32: return DecodeWords<kF32, uint32_t>(line, count, values);
    case kTf32: return DecodeWords<kTf32, uint32_t>(line, count, values);
    case kF16: return DecodeWords<kF16, uint16_t>(line, count, values);
    case kBf16: return DecodeWords<kBf16, uint16_t>(line, count, values);
    case kS32: return DecodeWords<kS32, uint32_t>(line, count, values);
    case kE4m3: return DecodeTabled<kE4m3>(line, count, values);
    case kE5m2: return DecodeTabled<kE5m2>(line, count, values);
    case kE3m2: return DecodeTabled<kE3m2>(line, count, values);
    case kE2m3: return DecodeTabled<kE2m3>(line, count, values);
    case kE2m1: return DecodeTabled<kE2m1>(line, count, values);
    case kS8: return DecodeTabled<kS8>(line, count, values);
    case kU8: return DecodeTabled<kU8>(line, count, values);
    case kS4: return DecodeTabled<kS4>(line, count, values);
    case kU4: return DecodeTabled<kU4>(line, count, values);
    case kB1: return DecodeTabled<kB1>(line, count, values);
  }
}

}  // namespace

std::optional<ElementType> ElementTypeFromName(std::string_view name) {
  for (ElementType type : kAllElementTypes) {
    if (NameOf(type) == name) return type;
  }
  return std::nullopt;
}

double Decode(ElementType type, uint64_t bits) {
  return WithElementType(
      type, [bits]<ElementType kType>() { return static_cast<double>(DecodeCode<kType>(bits)); });
}

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
