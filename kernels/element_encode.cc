// SPDX-License-Identifier: Apache-2.0
//
// Encoding of elements; element.cc has decoding and everything else.
#include <algorithm>
#include <cstring>

#include "kernels/element.h"
#include "kernels/element_codes.h"

namespace gemmd {
namespace {

constexpr int64_t kChunk =
    512;  // A multiple of 8, so that chunks of packed elements start on a byte.

// Encodes types of whole bytes. There are two loops because compilers make vector code of each, but
// not of both together.
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
  constexpr int64_t kGroup = 8;
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
