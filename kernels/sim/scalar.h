// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of one output element of one instruction, in the form of the specification in
// kernels/mma/arithmetic.h. The vector code must agree with it bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/mma/arithmetic.h"
#include "kernels/mma/element_type.h"
#include "kernels/mma/instruction.h"

namespace gemmd::sim {

enum class NumberClass : uint8_t { kZero, kFinite, kInfinite, kNan };

// A decoded floating-point element, as the matrix units see it: never normalised. (-1)^negative *
// significand * 2^(exponent - fraction_bits). A subnormal has the lowest exponent of its format and
// a significand without the leading 1.
struct Number {
  NumberClass kind = NumberClass::kZero;
  bool negative = false;
  int16_t exponent = 0;
  int16_t fraction_bits = 0;
  uint32_t significand = 0;
};

// Decodes an element of any float type except f64. tf32 loses its low 13 bits before its class is
// decided: 0x7f800001 is infinite.
constexpr Number Decode(ElementType type, uint32_t bits) {
  const FloatFormat format = FactsOf(type).format;
  if (type == ElementType::kTf32) bits >>= 13;
  const uint32_t fraction = bits & ((1u << format.fraction_bits) - 1);
  const uint32_t top = (1u << format.exponent_bits) - 1;
  const uint32_t field = bits >> format.fraction_bits & top;
  Number number;
  number.negative = (bits >> (format.exponent_bits + format.fraction_bits) & 1) != 0;
  number.fraction_bits = static_cast<int16_t>(format.fraction_bits);
  if (field == top && format.has_infinity) {
    number.kind = fraction == 0 ? NumberClass::kInfinite : NumberClass::kNan;
    return number;
  }
  if (field == top && format.has_nan && fraction == (1u << format.fraction_bits) - 1) {
    number.kind = NumberClass::kNan;
    return number;
  }
  number.exponent = static_cast<int16_t>((field == 0 ? 1 : static_cast<int>(field)) - format.bias);
  number.significand = field == 0 ? fraction : fraction | 1u << format.fraction_bits;
  number.kind = number.significand == 0 ? NumberClass::kZero : NumberClass::kFinite;
  return number;
}

// A factor of a block along k: a power of two, or (ue4m3) a significand with 3 fraction bits.
struct Factor {
  bool is_nan = false;
  int16_t exponent = 0;
  uint32_t significand = 1;
  int16_t fraction_bits = 0;
};

constexpr Factor DecodeFactor(mma::ScaleType type, uint32_t bits) {
  switch (type) {
    case mma::ScaleType::kNone: break;
    case mma::ScaleType::kUe8m0:
      return {bits == 0xff, static_cast<int16_t>(static_cast<int>(bits) - 127), 1, 0};
    case mma::ScaleType::kUe4m3: {
      const Number number = Decode(ElementType::kE4m3, bits & 0x7f);
      return {number.kind == NumberClass::kNan, number.exponent, number.significand,
              number.fraction_bits};
    }
  }
  return {};
}

inline constexpr uint32_t kNanF32 = 0x7fffffff;  // The only NaN that matrix units make.
inline constexpr uint32_t kNanF16 = 0x7fff;
inline constexpr uint32_t kInfinityF32 = 0x7f800000;
inline constexpr uint32_t kInfinityF16 = 0x7c00;

// Converts between f16 and f32: exactly to f32, and to nearest even with signed zeros to f16. NaN
// becomes the one NaN.
uint32_t F32FromF16(uint32_t bits);
uint32_t F16FromF32(uint32_t bits);

// The bits of a sum of one type as another: converts between f16 and f32; other types are
// unchanged.
uint64_t ConvertSum(ElementType from, ElementType to, uint64_t bits);

// An e4m3 or e5m2 element as f16, which holds it exactly; an e4m3 subnormal becomes normal.
uint32_t F16FromFp8(ElementType type, uint32_t bits);

// One product of a fused sum, scaled by 2^exponent.
struct Product {
  Number a;
  Number b;
  int exponent = 0;  // The exponent of its block's factors (mxf8f6f4).
  bool has_nan_factor = false;
};

// Adds a block of products and an addend; addend and result are in the format of the sum (f32 or
// f16).
uint32_t FusedSum(const mma::Arithmetic& arithmetic, std::span<const Product> products,
                  uint32_t addend);

// The exact sum of a group of products whose factors are not powers of two only.
struct ScaledGroup {
  int64_t sum = 0;  // In units of 2^-fraction_bits, signed.
  int fraction_bits = 0;
  int exponent = 0;  // The exponent of the factors, as they are stored.
  bool is_nan = false;
};

// Adds groups and an f32 addend.
uint32_t SumOfGroups(const mma::Arithmetic& arithmetic, std::span<const ScaledGroup> groups,
                     uint32_t addend);

// Adds four products and an addend as m8n8k4 without a tensor core does, in IEEE f32, with the type
// of the sum.
uint32_t MultiplyAdds(ElementType sum, std::span<const uint32_t, 4> a_f16,
                      std::span<const uint32_t, 4> b_f16, uint32_t addend);

// One step of an f64 chain in the current rounding mode: addend + a b, fused. A NaN operand is
// returned, made quiet: b rather than the addend, the addend rather than a.
uint64_t MultiplyAddF64(uint64_t a, uint64_t b, uint64_t addend);

// Sums of f32 and f16, rounded to nearest even, with the one NaN.
uint32_t AddF32(uint32_t x, uint32_t y);
// x * factor + y, rounded once.
uint32_t AddScaledF32(uint32_t x, float factor, uint32_t y);
uint32_t AddF16(uint32_t x, uint32_t y);

// The addend plus an exact sum, modulo 2^32 or clamped once.
uint32_t AddInteger(int64_t exact, uint32_t addend, bool saturates);

// Sets the f64 rounding mode during its lifetime.
class ScopedRounding {
 public:
  explicit ScopedRounding(mma::Rounding rounding);
  ~ScopedRounding();
  ScopedRounding(const ScopedRounding&) = delete;
  ScopedRounding& operator=(const ScopedRounding&) = delete;

 private:
  int restored_;
};

}  // namespace gemmd::sim
