// SPDX-License-Identifier: Apache-2.0
//
// Element types: widths, names, exact decoding and correctly rounded encoding.
//
// Elements narrower than a byte are packed low bits first along a line, and every line starts on a
// byte: element i of a line of w-bit elements takes bits i*w .. i*w+w-1 of the line.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
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
  bool has_infinity;  // Largest exponent means infinity and NaN, as IEEE.
  bool has_nan;       // IEEE, or (e4m3) the all-ones pattern alone.
};

// What is true of an element type. One row per type: the only table of widths and names.
struct ElementFacts {
  std::string_view name;  // "f32": PTX's spelling.
  int bits;
  bool is_float;
  bool is_signed;
  FloatFormat format;  // Zero for integers.
};

constexpr ElementFacts FactsOf(ElementType type) {
  switch (type) {
    case ElementType::kF64: return {"f64", 64, true, true, {11, 52, 1023, true, true}};
    case ElementType::kF32: return {"f32", 32, true, true, {8, 23, 127, true, true}};
    case ElementType::kTf32: return {"tf32", 32, true, true, {8, 10, 127, true, true}};
    case ElementType::kF16: return {"f16", 16, true, true, {5, 10, 15, true, true}};
    case ElementType::kBf16: return {"bf16", 16, true, true, {8, 7, 127, true, true}};
    case ElementType::kE4m3: return {"e4m3", 8, true, true, {4, 3, 7, false, true}};
    case ElementType::kE5m2: return {"e5m2", 8, true, true, {5, 2, 15, true, true}};
    case ElementType::kE3m2: return {"e3m2", 6, true, true, {3, 2, 3, false, false}};
    case ElementType::kE2m3: return {"e2m3", 6, true, true, {2, 3, 1, false, false}};
    case ElementType::kE2m1: return {"e2m1", 4, true, true, {2, 1, 1, false, false}};
    case ElementType::kS8: return {"s8", 8, false, true, {}};
    case ElementType::kU8: return {"u8", 8, false, false, {}};
    case ElementType::kS4: return {"s4", 4, false, true, {}};
    case ElementType::kU4: return {"u4", 4, false, false, {}};
    case ElementType::kB1: return {"b1", 1, false, false, {}};
    case ElementType::kS32: return {"s32", 32, false, true, {}};
  }
  return {};
}

constexpr std::string_view NameOf(ElementType type) { return FactsOf(type).name; }
constexpr int BitsOf(ElementType type) { return FactsOf(type).bits; }
constexpr bool IsFloat(ElementType type) { return FactsOf(type).is_float; }
constexpr bool IsInteger(ElementType type) { return !FactsOf(type).is_float; }

std::optional<ElementType> ElementTypeFromName(std::string_view name);

// The value of one element, exactly. `bits` holds the element in its low BitsOf(type) bits; tf32
// ignores the low 13 bits of its word.
double Decode(ElementType type, uint64_t bits);

// The element nearest to `value`, ties to even, in the low BitsOf(type) bits.
//
// Overflow gives infinity for f64, f32, tf32, f16 and bf16 and the largest finite value for e4m3,
// e5m2, e3m2, e2m3 and e2m1 (infinity included), as PTX `cvt.satfinite`. NaN gives NaN where the
// type has one, the largest finite value for e3m2, e2m3, e2m1, and 0 for integers. Integers
// saturate.
uint64_t Encode(ElementType type, double value);

// Reads or writes element `index` of a packed line.
uint64_t LoadBits(ElementType type, const std::byte* line, int64_t index);
void StoreBits(ElementType type, std::byte* line, int64_t index, uint64_t bits);

// Decodes a packed line of `count` elements. Target must hold every value of `type` exactly; it
// does for: float any type up to 16 bits wide, tf32, f32 and integers up to 8 bits; double any
// type. These are the bulk paths: f16, bf16 and types of at most 8 bits do not go through Decode.
void DecodeLine(ElementType type, const std::byte* line, int64_t count, float* values);
void DecodeLine(ElementType type, const std::byte* line, int64_t count, double* values);

// Encodes a line: as Encode of each value; bits behind the last element of the line's last byte are
// 0.
void EncodeLine(ElementType type, const float* values, int64_t count, std::byte* line);
void EncodeLine(ElementType type, const double* values, int64_t count, std::byte* line);

}  // namespace gemmd
