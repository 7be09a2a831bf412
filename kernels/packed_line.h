// SPDX-License-Identifier: Apache-2.0
//
// Elements and bytes of packed lines (element.h) for host and device code. The templates are
// constexpr because nvcc compiles such functions for both sides.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/element_codes.h"

namespace gemmd {

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
