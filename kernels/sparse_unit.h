// SPDX-License-Identifier: Apache-2.0
//
// Units of sparse24.h as bits. A unit is kept or dropped together: it is one element, or two
// four-bit elements, which share a byte because every line starts on one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/element.h"
#include "kernels/sparse24.h"

namespace gemmd {

// Units of whole bytes.
template <typename Word>
struct WholeUnits {
  static uint32_t Load(const std::byte* line, int64_t index) {
    Word word;
    std::memcpy(&word, line + index * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    return word;
  }
  static void Store(std::byte* line, int64_t index, uint32_t bits) {
    const Word word = static_cast<Word>(bits);
    std::memcpy(line + index * static_cast<int64_t>(sizeof(Word)), &word, sizeof(Word));
  }
};

// Units of one six-bit element; the two six-bit types are packed alike.
struct SixBitUnits {
  static uint32_t Load(const std::byte* line, int64_t index) {
    return static_cast<uint32_t>(LoadBits(ElementType::kE3m2, line, index));
  }
  static void Store(std::byte* line, int64_t index, uint32_t bits) {
    StoreBits(ElementType::kE3m2, line, index, bits);
  }
};

// Calls visit with an object of the type that loads and stores the units of the layout.
template <typename Visit>
auto WithUnits(const SparseLayout& layout, const Visit& visit) {
  switch (BitsOf(layout.type) * static_cast<int>(layout.form.unit)) {
    case 6: return visit(SixBitUnits());
    case 8: return visit(WholeUnits<uint8_t>());
    case 16: return visit(WholeUnits<uint16_t>());
    default: return visit(WholeUnits<uint32_t>());
  }
}

// Units of a dense line; the last may lie half beyond the matrix.
constexpr int64_t UnitsOfLine(const SparseLayout& layout) {
  return layout.columns / layout.form.unit + layout.columns % layout.form.unit;
}

// The bits of the last unit of a dense line that are in the matrix.
constexpr uint32_t LastUnitMask(const SparseLayout& layout) {
  return layout.columns % layout.form.unit != 0 ? 0xf : ~uint32_t{0};
}

// The bits that decide whether an element is zero.
constexpr uint64_t MagnitudeMask(ElementType type) {
  const int width = BitsOf(type);
  if (type == ElementType::kTf32) return 0x7fff'e000;
  return ~uint64_t{0} >> (64 - (IsFloat(type) ? width - 1 : width));
}

constexpr bool IsZero(ElementType type, uint64_t bits) { return (bits & MagnitudeMask(type)) == 0; }

// The bits that decide whether a whole unit is zero.
constexpr uint32_t UnitMagnitudeMask(ElementType type) {
  const auto mask = static_cast<uint32_t>(MagnitudeMask(type));
  return BitsOf(type) == 4 ? mask << 4 | mask : mask;
}

// Loads index `position` of a line of indices.
constexpr uint32_t LoadIndex(const std::byte* line, int64_t position) {
  return std::to_integer<uint32_t>(line[position / 4]) >> position % 4 * 2 & 3;
}

// Stores index `position` of a line of indices, whose bits must be 0 before.
inline void StoreIndex(std::byte* line, int64_t position, uint32_t index) {
  line[position / 4] |= static_cast<std::byte>(index << position % 4 * 2);
}

}  // namespace gemmd
