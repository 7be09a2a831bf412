// SPDX-License-Identifier: Apache-2.0
//
// Element types: names, widths and formats. Plain constant data that host and device code share.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace gemmd {

enum class ElementType : uint8_t {
  kF64,
  kF32,
  kTf32,
  kF16,
  kBf16,
  kE4m3,
  kE5m2,
  kE3m2,
  kE2m3,
  kE2m1,
  kS8,
  kU8,
  kS4,
  kU4,
  kB1,
  kS32,
};

// Every element type, in the order of the enumeration.
inline constexpr std::array<ElementType, 16> kAllElementTypes = {
    ElementType::kF64,  ElementType::kF32,  ElementType::kTf32, ElementType::kF16,
    ElementType::kBf16, ElementType::kE4m3, ElementType::kE5m2, ElementType::kE3m2,
    ElementType::kE2m3, ElementType::kE2m1, ElementType::kS8,   ElementType::kU8,
    ElementType::kS4,   ElementType::kU4,   ElementType::kB1,   ElementType::kS32};

// The layout of a binary floating-point type narrower than f64.
struct FloatFormat {
  int exponent_bits;
  int fraction_bits;
  int bias;
  bool has_infinity;  // The largest exponent means infinity and NaN, as in IEEE.
  bool has_nan;       // As in IEEE, or (e4m3) the all-ones pattern alone.
};

// The facts of an element type, one row per type: the only table of widths.
struct ElementFacts {
  int bits;
  bool is_float;
  bool is_signed;
  FloatFormat format;  // Zero for integers.
};

constexpr ElementFacts FactsOf(ElementType type) {
  switch (type) {
    case ElementType::kF64: return {64, true, true, {11, 52, 1023, true, true}};
    case ElementType::kF32: return {32, true, true, {8, 23, 127, true, true}};
    case ElementType::kTf32: return {32, true, true, {8, 10, 127, true, true}};
    case ElementType::kF16: return {16, true, true, {5, 10, 15, true, true}};
    case ElementType::kBf16: return {16, true, true, {8, 7, 127, true, true}};
    case ElementType::kE4m3: return {8, true, true, {4, 3, 7, false, true}};
    case ElementType::kE5m2: return {8, true, true, {5, 2, 15, true, true}};
    case ElementType::kE3m2: return {6, true, true, {3, 2, 3, false, false}};
    case ElementType::kE2m3: return {6, true, true, {2, 3, 1, false, false}};
    case ElementType::kE2m1: return {4, true, true, {2, 1, 1, false, false}};
    case ElementType::kS8: return {8, false, true, {}};
    case ElementType::kU8: return {8, false, false, {}};
    case ElementType::kS4: return {4, false, true, {}};
    case ElementType::kU4: return {4, false, false, {}};
    case ElementType::kB1: return {1, false, false, {}};
    case ElementType::kS32: return {32, false, true, {}};
  }
  return {};
}

// PTX's spelling: "f32". It is not among the facts, because device code cannot make a
// std::string_view.
constexpr std::string_view NameOf(ElementType type) {
  switch (type) {
    case ElementType::kF64: return "f64";
    case ElementType::kF32: return "f32";
    case ElementType::kTf32: return "tf32";
    case ElementType::kF16: return "f16";
    case ElementType::kBf16: return "bf16";
    case ElementType::kE4m3: return "e4m3";
    case ElementType::kE5m2: return "e5m2";
    case ElementType::kE3m2: return "e3m2";
    case ElementType::kE2m3: return "e2m3";
    case ElementType::kE2m1: return "e2m1";
    case ElementType::kS8: return "s8";
    case ElementType::kU8: return "u8";
    case ElementType::kS4: return "s4";
    case ElementType::kU4: return "u4";
    case ElementType::kB1: return "b1";
    case ElementType::kS32: return "s32";
  }
  return "";
}

constexpr int BitsOf(ElementType type) { return FactsOf(type).bits; }
constexpr bool IsFloat(ElementType type) { return FactsOf(type).is_float; }
constexpr bool IsInteger(ElementType type) { return !FactsOf(type).is_float; }

}  // namespace gemmd
