// SPDX-License-Identifier: Apache-2.0
//
// Conversion of one element to its code and back, as constexpr functions that host and device code
// compile alike; element.h says what they compute. They have no branches, so that loops over them
// become vector code.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/mma/element_type.h"

namespace gemmd {

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

// a < b ? x : y, for a and b whose top bit is 0. For f32 it uses a mask, which vectorizes; baseline
// x86 cannot compare vectors of 64-bit words.
template <typename Word>
constexpr Word ChooseIfLess(Word a, Word b, Word x, Word y) {
  if constexpr (sizeof(Word) == 4) {
    const Word mask = -static_cast<Word>(static_cast<int32_t>(a) < static_cast<int32_t>(b));
    return (x & mask) | (y & ~mask);
  } else {
    return a < b ? x : y;
  }
}

// The bits of a number; every NaN gives the bits of the canonical NaN.
template <typename T>
constexpr typename Wide<T>::Word BitsWithOneNan(T value) {
  using Word = typename Wide<T>::Word;
  constexpr T kNan = std::bit_cast<T>(~Word{0} >> 1);
  return std::bit_cast<Word>(value == value ? value : kNan);
}

// The code nearest to a value of a wider type.
//
// Normal results: an integer addition rounds the bits that are dropped, and its carry may reach the
// exponent. Subnormal results: adding 2^e, whose last fraction bit has the weight of the
// subnormals' quantum, lets the processor round; the difference of the words is the code.
template <ElementType kType, typename T>
constexpr uint32_t EncodeNarrowFloat(T value) {
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
constexpr uint32_t EncodeInteger(T value) {
  using Exact = std::conditional_t<BitsOf(kType) <= 8, T, double>;  // s32 does not fit f32.
  using Word = typename Wide<Exact>::Word;
  constexpr int kBits = BitsOf(kType);
  constexpr bool kSigned = FactsOf(kType).is_signed;
  constexpr Exact kLowest = kSigned ? -Wide<Exact>::Power(kBits - 1) : 0;
  constexpr Exact kHighest = Wide<Exact>::Power(kSigned ? kBits - 1 : kBits) - 1;
  constexpr Exact kMagic = Exact{1.5} * Wide<Exact>::Power(Wide<Exact>::kFractionBits);
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  Exact exact = value;
  exact = exact != exact ? 0 : exact;
  exact = exact < kLowest ? kLowest : exact;
  exact = exact > kHighest ? kHighest : exact;
  return static_cast<uint32_t>(std::bit_cast<Word>(exact + kMagic) & kMask);
}

// The code of the element nearest to a float or double, in 32 bits if they are enough.
template <ElementType kType, typename T>
constexpr auto EncodeCode(T value) {
  if constexpr (kType == ElementType::kF64) {
    return BitsWithOneNan(static_cast<double>(value));
  } else if constexpr (kType == ElementType::kF32) {
    return BitsWithOneNan(static_cast<float>(value));
  } else if constexpr (kType == ElementType::kTf32) {
    return EncodeNarrowFloat<kType>(value) << 13;
  } else if constexpr (IsFloat(kType)) {
    return EncodeNarrowFloat<kType>(value);
  } else {
    return EncodeInteger<kType>(value);
  }
}

// The value of a float of at most 16 bits. Exponent and fraction are moved to their places in an
// f32, whose exponent is then too small by the difference of the biases. Multiplying by a power of
// two corrects that and normalises subnormals, exactly.
template <ElementType kType>
constexpr float DecodeNarrowFloat(uint32_t code) {
  constexpr FloatFormat kFormat = FactsOf(kType).format;
  constexpr int kWidth = 1 + kFormat.exponent_bits + kFormat.fraction_bits;
  constexpr int kShift = Wide<float>::kFractionBits - kFormat.fraction_bits;
  constexpr uint32_t kAllOnes = (uint32_t{1} << (kWidth - 1)) - 1;
  constexpr uint32_t kTopExponent = kAllOnes >> kFormat.fraction_bits << kFormat.fraction_bits;
  // The first code that is not a finite number, if there is one.
  constexpr uint32_t kFirstSpecial = kFormat.has_infinity ? kTopExponent : kAllOnes;
  const uint32_t magnitude = code & kAllOnes;
  const uint32_t sign = code >> (kWidth - 1) << 31;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << kShift) *
                                                  Wide<float>::Power(127 - kFormat.bias));
  if constexpr (!kFormat.has_nan) return std::bit_cast<float>(sign | scaled);
  const uint32_t special = magnitude << kShift | 0x7f80'0000;
  return std::bit_cast<float>(sign | (magnitude >= kFirstSpecial ? special : scaled));
}

// The value of an element whose code is in the low bits; other bits are ignored. An s32 stays as it
// is; other types become f32 if that holds every value of the type, otherwise f64.
template <ElementType kType>
constexpr auto DecodeCode(uint64_t code) {
  if constexpr (kType == ElementType::kF64) {
    return std::bit_cast<double>(code);
  } else if constexpr (kType == ElementType::kS32) {
    return static_cast<int32_t>(code);
  } else if constexpr (kType == ElementType::kF32) {
    return std::bit_cast<float>(static_cast<uint32_t>(code));
  } else if constexpr (kType == ElementType::kTf32) {
    return std::bit_cast<float>(static_cast<uint32_t>(code) & ~uint32_t{0x1fff});
  } else if constexpr (kType == ElementType::kBf16) {
    return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
  } else if constexpr (IsFloat(kType)) {
    return DecodeNarrowFloat<kType>(static_cast<uint32_t>(code) &
                                    ((uint32_t{1} << BitsOf(kType)) - 1));
  } else {
    constexpr int kUnused = 32 - BitsOf(kType);
    const uint32_t shifted = static_cast<uint32_t>(code) << kUnused;
    return FactsOf(kType).is_signed ? static_cast<float>(static_cast<int32_t>(shifted) >> kUnused)
                                    : static_cast<float>(shifted >> kUnused);
  }
}

// Calls visit.template operator()<kType>() for the type.
template <typename Visit>
constexpr auto WithElementType(ElementType type, const Visit& visit) {
  using enum ElementType;
  switch (type) {
    case kF64: return visit.template operator()<kF64>();
    case kF32: return visit.template operator()<kF32>();
    case kTf32: return visit.template operator()<kTf32>();
    case kF16: return visit.template operator()<kF16>();
    case kBf16: return visit.template operator()<kBf16>();
    case kE4m3: return visit.template operator()<kE4m3>();
    case kE5m2: return visit.template operator()<kE5m2>();
    case kE3m2: return visit.template operator()<kE3m2>();
    case kE2m3: return visit.template operator()<kE2m3>();
    case kE2m1: return visit.template operator()<kE2m1>();
    case kS8: return visit.template operator()<kS8>();
    case kU8: return visit.template operator()<kU8>();
    case kS4: return visit.template operator()<kS4>();
    case kU4: return visit.template operator()<kU4>();
    case kB1: return visit.template operator()<kB1>();
    case kS32: return visit.template operator()<kS32>();
  }
  return visit.template operator()<kS32>();
}

// Elements and bytes of packed lines (element.h) for host and device code. The templates are
// constexpr because nvcc compiles such functions for both sides.

// An unsigned word of kBytes bytes.
template <int kBytes>
using WordOfBytes = std::conditional_t<
    kBytes == 8, uint64_t,
    std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>>;

// The code of element `index` of a packed line, in the low bits; the other bits hold anything.
// Lines of types of whole bytes are aligned to their elements. Only bytes that hold part of the
// element are read.
template <int kBits>
constexpr uint64_t LoadCode(const std::byte* line, int64_t index) {
  if constexpr (kBits >= 8) {
    return reinterpret_cast<const WordOfBytes<kBits / 8>*>(line)[index];
  } else {
    const int64_t first = index * kBits;
    const std::byte* bytes = line + first / 8;
    const int shift = static_cast<int>(first % 8);
    uint32_t word = std::to_integer<uint32_t>(bytes[0]);
    if (shift + kBits > 8) word |= std::to_integer<uint32_t>(bytes[1]) << 8;
    return word >> shift;
  }
}

// Element `index` of a packed line, rounded to T if T does not hold it.
template <typename T>
constexpr T LoadElement(ElementType type, const std::byte* line, int64_t index) {
  return WithElementType(type, [line, index]<ElementType kType>() {
    return static_cast<T>(DecodeCode<kType>(LoadCode<BitsOf(kType)>(line, index)));
  });
}

template <int kBytes>
constexpr void StoreWords(std::byte* target, uint64_t word, int bytes) {
  for (int i = 0; i < bytes; i += kBytes, target += kBytes) {
    *reinterpret_cast<WordOfBytes<kBytes>*>(target) = static_cast<WordOfBytes<kBytes>>(word);
    word = kBytes == 8 ? 0 : word >> (8 * kBytes % 64);
  }
}

// Stores the low bytes (1 to 8) of a word, in words as wide as the address and the count allow.
template <typename Byte>
constexpr void StoreBytes(Byte* target, uint64_t word, int bytes) {
  const auto place =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(target)) | static_cast<uint32_t>(bytes);
  if (place % 8 == 0) {
    StoreWords<8>(target, word, bytes);
  } else if (place % 4 == 0) {
    StoreWords<4>(target, word, bytes);
  } else if (place % 2 == 0) {
    StoreWords<2>(target, word, bytes);
  } else {
    StoreWords<1>(target, word, bytes);
  }
}

}  // namespace gemmd
