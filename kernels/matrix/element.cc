// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/element.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/matrix/element_codes.h"

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
  uint64_t word = 0;  // An element narrower than a byte may span two bytes.
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

namespace {

constexpr int64_t kChunk =
    512;  // A multiple of 8, so that chunks of packed elements start on a byte.

// Encodes types of whole bytes. Two separate loops, because compilers vectorize each but not a
// fused one.
template <ElementType kType, typename Word, typename T>
void EncodeWords(const T* values, int64_t count, std::byte* line) {
  for (int64_t first = 0; first < count; first += kChunk) {
    uint32_t codes[kChunk];
    const int64_t chunk = std::min(kChunk, count - first);
    for (int64_t i = 0; i < chunk; ++i) codes[i] = EncodeCode<kType>(values[first + i]);
    std::byte* words = line + first * static_cast<int64_t>(sizeof(Word));
    for (int64_t i = 0; i < chunk; ++i) {
      const auto word = static_cast<Word>(codes[i]);
      std::memcpy(words + i * static_cast<int64_t>(sizeof(Word)), &word, sizeof(Word));
    }
  }
}

template <typename T>
void EncodeF64(const T* values, int64_t count, std::byte* line) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = EncodeCode<ElementType::kF64>(values[i]);
    std::memcpy(line + 8 * i, &word, sizeof(word));
  }
}

// Encodes types narrower than a byte, in groups that fill whole bytes.
template <ElementType kType, typename T>
void EncodePacked(const T* values, int64_t count, std::byte* line) {
  constexpr int kBits = BitsOf(kType);
  for (int64_t first = 0; first < count; first += kChunk) {
    uint32_t codes[kChunk + kGroup];
    const int64_t chunk = std::min(kChunk, count - first);
    for (int64_t i = 0; i < chunk; ++i) codes[i] = EncodeCode<kType>(values[first + i]);
    std::fill_n(codes + chunk, kGroup, 0u);
    for (int64_t i = 0; i < chunk; i += kGroup) {
      uint64_t packed = 0;
      for (int e = 0; e < kGroup; ++e) packed |= uint64_t{codes[i + e]} << e * kBits;
      const int64_t bytes = (std::min(kGroup, chunk - i) * kBits + 7) / 8;
      std::memcpy(line + (first + i) / kGroup * kBits, &packed, static_cast<size_t>(bytes));
    }
  }
}

template <typename T>
void EncodeLineAs(ElementType type, const T* values, int64_t count, std::byte* line) {
  using enum ElementType;
  switch (type) {
    case kF64: return EncodeF64(values, count, line);
    case kF32: return EncodeWords<kF32, uint32_t>(values, count, line);
    case kTf32: return EncodeWords<kTf32, uint32_t>(values, count, line);
    case kF16: return EncodeWords<kF16, uint16_t>(values, count, line);
    case kBf16: return EncodeWords<kBf16, uint16_t>(values, count, line);
    case kE4m3: return EncodeWords<kE4m3, uint8_t>(values, count, line);
    case kE5m2: return EncodeWords<kE5m2, uint8_t>(values, count, line);
    case kE3m2: return EncodePacked<kE3m2>(values, count, line);
    case kE2m3: return EncodePacked<kE2m3>(values, count, line);
    case kE2m1: return EncodePacked<kE2m1>(values, count, line);
    case kS8: return EncodeWords<kS8, uint8_t>(values, count, line);
    case kU8: return EncodeWords<kU8, uint8_t>(values, count, line);
    case kS4: return EncodePacked<kS4>(values, count, line);
    case kU4: return EncodePacked<kU4>(values, count, line);
    case kB1: return EncodePacked<kB1>(values, count, line);
    case kS32: return EncodeWords<kS32, uint32_t>(values, count, line);
  }
}

}  // namespace

uint64_t Encode(ElementType type, double value) {
  uint64_t bits = 0;
  EncodeLineAs(type, &value, 1, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

void EncodeLine(ElementType type, const float* values, int64_t count, std::byte* line) {
  EncodeLineAs(type, values, count, line);
}

void EncodeLine(ElementType type, const double* values, int64_t count, std::byte* line) {
  EncodeLineAs(type, values, count, line);
}

}  // namespace gemmd
