// SPDX-License-Identifier: Apache-2.0
//
// C++ types for element types that C++ lacks. They store and convert, but do not compute:
//
//   std::vector<gemmd::Bf16> w(k * n, gemmd::Bf16(0.5f));
//   auto weights = client->Put(gemmd::View(w, k, n));
//   float first = w[0];
//
// Conversion rounds to nearest, ties to even; overflow becomes infinity (f16, bf16) or the largest
// finite value (e4m3, e5m2). Encode and Decode (prepare.h) convert arrays faster.
#pragma once

#include <cstdint>

#include "gemmd/element_codec.h"
#include "gemmd/wire_types.h"

namespace gemmd {

template <v1::ElementType kType, typename Bits>
struct StoredElement {
  static constexpr v1::ElementType kElementType = kType;

  StoredElement() = default;
  explicit StoredElement(float value)
      : bits(static_cast<Bits>(ElementPattern(kType, static_cast<double>(value)))) {}
  operator float() const {  // NOLINT(google-explicit-constructor): every value is preserved.
    return static_cast<float>(ElementValue(kType, bits));
  }
  static StoredElement FromBits(Bits pattern) {
    StoredElement element;
    element.bits = pattern;
    return element;
  }

  Bits bits = 0;
};

using F16 = StoredElement<v1::kF16, uint16_t>;
using Bf16 = StoredElement<v1::kBf16, uint16_t>;
using E4m3 = StoredElement<v1::kE4m3, uint8_t>;
using E5m2 = StoredElement<v1::kE5m2, uint8_t>;
static_assert(sizeof(F16) == 2 && sizeof(Bf16) == 2 && sizeof(E4m3) == 1 && sizeof(E5m2) == 1);

}  // namespace gemmd
