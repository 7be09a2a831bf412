// SPDX-License-Identifier: Apache-2.0
//
// Encoding of elements; decoding and all else is in element.cc.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/element.h"

namespace gemmd {
namespace {

constexpr int64_t kChunk =
    512;  // A multiple of 8, so that chunks of packed elements start on a byte.

template <typename T>
struct Wide;
template <>
struct Wide<float> {
  using Word = uint32_t;
  static constexpr int kFractionBits = 23, kBias = 127;
  static constexpr float Power(int exponent) {
    return std::bit_cast<float>(static_cast<uint32_t>(exponent + kBias) << kFractionBits);
  }
};
template <>
struct Wide<double> {
  using Word = uint64_t;
  static constexpr int kFractionBits = 52, kBias = 1023;
  static constexpr double Power(int exponent) {
    return std::bit_cast<double>(static_cast<uint64_t>(exponent + kBias) << kFractionBits);
  }
};

// a < b ? x : y, for a and b whose top bit is 0. As a mask for f32, which makes vector code;
// baseline x86 cannot compare vectors of 64-bit words.
template <typename Word>
Word ChooseIfLess(Word a, Word b, Word x, Word y) {
  if constexpr (sizeof(Word) == 4) {
    const Word mask = -static_cast<Word>(static_cast<int32_t>(a) < static_cast<int32_t>(b));
    return (x & mask) | (y & ~mask);
  } else {
    return a < b ? x : y;
  }
}

// The code nearest to a value of a wider type, without branches so that loops become vector code.
//
// Normal results: the bits that go are rounded by an integer addition whose carry may reach the
// exponent. Subnormal results: adding 2^e, whose last fraction bit has the weight of the
// subnormals' quantum, lets the processor round; the difference of the words is the code.
template <ElementType kType, typename T>
uint32_t EncodeNarrowFloat(T value) {
  using Word = typename Wide<T>::Word;
  constexpr FloatFormat kFormat = FactsOf(kType).format;
  constexpr int kWidth = 1 + kFormat.exponent_bits + kFormat.fraction_bits;
  constexpr int kDropped = Wide<T>::kFractionBits - kFormat.fraction_bits;
  constexpr Word kSignBit = Word{1} << (8 * sizeof(Word) - 1);
  constexpr Word kInfinity = (kSignBit - 1) >> Wide<T>::kFractionBits << Wide<T>::kFractionBits;
  constexpr Word kAllOnes = (Word{1} << (kWidth - 1)) - 1;
  constexpr Word kTopExponent = kAllOnes >> kFormat.fraction_bits << kFormat.fraction_bits;
  constexpr bool kSaturates = BitsOf(kType) <= 8;
  constexpr Word kOverflow = !kSaturates            ? kTopExponent
                             : kFormat.has_infinity ? kTopExponent - 1
                             : kFormat.has_nan      ? kAllOnes - 1
                                                    : kAllOnes;
  constexpr T kSmallestNormal = Wide<T>::Power(1 - kFormat.bias);
  constexpr T kMagic =
      Wide<T>::Power(1 - kFormat.bias - kFormat.fraction_bits + Wide<T>::kFractionBits);
  constexpr Word kRebias = static_cast<Word>(Wide<T>::kBias - kFormat.bias)
                           << kFormat.fraction_bits;

  const Word word = std::bit_cast<Word>(value);
  const Word magnitude = word & ~kSignBit;
  const Word rounded =
      magnitude + (Word{1} << (kDropped - 1)) - 1 + (magnitude >> kDropped & Word{1});
  const Word normal = (rounded >> kDropped) - kRebias;
  const Word subnormal =
      std::bit_cast<Word>(std::bit_cast<T>(magnitude) + kMagic) - std::bit_cast<Word>(kMagic);
  Word code = ChooseIfLess(magnitude, std::bit_cast<Word>(kSmallestNormal), subnormal, normal);
  code = ChooseIfLess(kOverflow, code, kOverflow, code);
  code |= word >> (8 * sizeof(Word) - 1) << (kWidth - 1);
  code = ChooseIfLess(kInfinity, magnitude, kAllOnes, code);
  return static_cast<uint32_t>(code);
}

// Adding 1.5 times the number whose last fraction bit is 1 rounds to an integer, ties to even, and
// leaves it in the low bits of the word.
template <ElementType kType, typename T>
uint32_t EncodeInteger(T value) {
  using Exact = std::conditional_t<BitsOf(kType) <= 8, T, double>;  // s32 does not fit f32.
  using Word = typename Wide<Exact>::Word;
  constexpr int kBits = BitsOf(kType);
  constexpr bool kSigned = FactsOf(kType).is_signed;
  constexpr Exact kLowest = kSigned ? -Wide<Exact>::Power(kBits - 1) : 0;
  constexpr Exact kHighest = Wide<Exact>::Power(kSigned ? kBits - 1 : kBits) - 1;
  constexpr Exact kMagic = Exact{1.5} * Wide<Exact>::Power(Wide<Exact>::kFractionBits);
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  Exact exact = value;
  exact = std::isnan(exact) ? 0 : exact;
  exact = exact < kLowest ? kLowest : exact;
  exact = exact > kHighest ? kHighest : exact;
  return static_cast<uint32_t>(std::bit_cast<Word>(exact + kMagic) & kMask);
}

template <ElementType kType, typename T>
uint32_t EncodeCode(T value) {
  if constexpr (kType == ElementType::kF32) {
    return std::bit_cast<uint32_t>(static_cast<float>(value));
  } else if constexpr (kType == ElementType::kTf32) {
    return EncodeNarrowFloat<kType>(value) << 13;
  } else if constexpr (IsFloat(kType)) {
    return EncodeNarrowFloat<kType>(value);
  } else {
    return EncodeInteger<kType>(value);
  }
}

// Types of whole bytes. Two loops, since compilers make vector code of each but not of both
// together.
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
    const double value = values[i];
    std::memcpy(line + 8 * i, &value, sizeof(value));
  }
}

// Types narrower than a byte, in groups that fill whole bytes.
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
