// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/scalar.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <climits>
#include <cmath>
#include <limits>
#include <optional>

namespace gemmd::sim {
namespace {

// The format of a sum.
struct SumFormat {
  int stored_bits;  // Fraction bits that survive.
  int field_bits;   // Fraction bits of the format.
  int min_exponent;
  int largest_exponent;
  uint32_t sign_bit;
  uint32_t infinity;
  bool to_nearest;
};

constexpr SumFormat kF16Sums = {10, 10, -14, 15, 0x8000, kInfinityF16, true};
constexpr SumFormat kF32Sums = {23, 23, -126, 127, 0x80000000, kInfinityF32, false};

// Rounds magnitude * 2^unit, once; the sign bit is 0.
uint32_t RoundMagnitude(const SumFormat& format, uint64_t magnitude, int unit) {
  if (magnitude == 0) return 0;
  const int exponent = 63 - std::countl_zero(magnitude) + unit;
  if (exponent > format.largest_exponent) return format.infinity;
  const int dropped = std::max(exponent, format.min_exponent) - format.stored_bits - unit;
  uint64_t kept = 0;
  if (dropped <= 0) {
    kept = magnitude << -dropped;
  } else if (dropped < 64) {
    kept = magnitude >> dropped;
    const uint64_t rest = magnitude - (kept << dropped);
    const uint64_t half = uint64_t{1} << (dropped - 1);
    const bool is_up = rest > half || (rest == half && (kept & 1) != 0);
    if (format.to_nearest && is_up) ++kept;
  }
  kept <<= format.field_bits - format.stored_bits;
  // The leading one of a normal `kept` adds itself to the exponent, as does a carry.
  const int biased = std::max(exponent, format.min_exponent) - format.min_exponent;
  return static_cast<uint32_t>((static_cast<uint64_t>(biased) << format.field_bits) + kept);
}

// Rounds a finite number to f16, to nearest even; the sign stays if the number vanishes.
uint32_t RoundToF16(const Number& number) {
  return (number.negative ? kF16Sums.sign_bit : 0) |
         RoundMagnitude(kF16Sums, number.significand, number.exponent - number.fraction_bits);
}

}  // namespace

uint32_t F32FromF16(uint32_t bits) {
  const Number number = Decode(ElementType::kF16, bits);
  if (number.kind == NumberClass::kNan) return kNanF32;
  const uint32_t sign = number.negative ? 0x80000000 : 0;
  if (number.kind == NumberClass::kInfinite) return sign | kInfinityF32;
  // Every f16 is a whole multiple of 2^-24, and f32 holds it.
  const float magnitude =
      static_cast<float>(number.significand) *
      std::bit_cast<float>(static_cast<uint32_t>(number.exponent - number.fraction_bits + 127)
                           << 23);
  return sign | std::bit_cast<uint32_t>(magnitude);
}

uint32_t F16FromF32(uint32_t bits) {
  const Number number = Decode(ElementType::kF32, bits);
  if (number.kind == NumberClass::kNan) return kNanF16;
  if (number.kind == NumberClass::kInfinite) {
    return (number.negative ? 0x8000u : 0u) | kInfinityF16;
  }
  return RoundToF16(number);
}

uint32_t F16FromFp8(ElementType type, uint32_t bits) {
  if (type == ElementType::kE5m2) return bits << 8;
  const Number number = Decode(type, bits);
  if (number.kind == NumberClass::kNan) return kNanF16;
  return RoundToF16(number);
}

uint64_t ConvertSum(ElementType from, ElementType to, uint64_t bits) {
  const auto word = static_cast<uint32_t>(bits);
  if (from == ElementType::kF16 && to == ElementType::kF32) return F32FromF16(word);
  if (from == ElementType::kF32 && to == ElementType::kF16) return F16FromF32(word);
  return bits;
}

namespace {

constexpr int kNone = INT_MIN;  // No exponent: nothing to align to.

// The special values in a sum: NaN, or infinities of one sign.
struct Specials {
  bool nan = false;
  bool positive_infinity = false;
  bool negative_infinity = false;

  void AddInfinity(bool negative) { (negative ? negative_infinity : positive_infinity) = true; }

  // The result, if the specials decide it.
  std::optional<uint32_t> Result(ElementType sum) const {
    const bool is_f16 = sum == ElementType::kF16;
    if (nan || (positive_infinity && negative_infinity)) return is_f16 ? kNanF16 : kNanF32;
    if (!positive_infinity && !negative_infinity) return std::nullopt;
    if (is_f16) return kInfinityF16 | (negative_infinity ? 0x8000u : 0u);
    return kInfinityF32 | (negative_infinity ? 0x80000000u : 0u);
  }
};

Specials SpecialsOf(std::span<const Product> products, const Number& addend) {
  Specials specials;
  specials.nan = addend.kind == NumberClass::kNan;
  if (addend.kind == NumberClass::kInfinite) specials.AddInfinity(addend.negative);
  for (const Product& product : products) {
    const NumberClass a = product.a.kind;
    const NumberClass b = product.b.kind;
    if (a == NumberClass::kNan || b == NumberClass::kNan || product.has_nan_factor) {
      specials.nan = true;
    } else if (a == NumberClass::kInfinite || b == NumberClass::kInfinite) {
      if (a == NumberClass::kZero || b == NumberClass::kZero) {
        specials.nan = true;
      } else {
        specials.AddInfinity(product.a.negative != product.b.negative);
      }
    }
  }
  return specials;
}

bool IsNonZero(const Product& product) {
  return product.a.significand != 0 && product.b.significand != 0;
}

int ExponentOf(const Product& product) {
  return product.a.exponent + product.b.exponent + product.exponent;
}

// magnitude * 2^exponent in whole units of 2^unit; smaller bits are truncated.
int64_t CutToUnits(uint64_t magnitude, int exponent, int unit, bool negative) {
  const int shift = exponent - unit;
  uint64_t units = 0;
  if (shift >= 0) {
    units = magnitude << shift;
  } else if (shift > -64) {
    units = magnitude >> -shift;
  }
  return negative ? -static_cast<int64_t>(units) : static_cast<int64_t>(units);
}

// Rounds the exact sum, in units of 2^unit, once. A result of zero is +0.
uint32_t Round(const mma::Arithmetic& arithmetic, int64_t sum, int unit) {
  SumFormat format = arithmetic.sum == ElementType::kF16 ? kF16Sums : kF32Sums;
  format.stored_bits = arithmetic.stored_bits;
  const bool negative = sum < 0;
  const uint64_t magnitude = negative ? -static_cast<uint64_t>(sum) : static_cast<uint64_t>(sum);
  const uint32_t bits = RoundMagnitude(format, magnitude, unit);
  return negative && bits != 0 ? bits | format.sign_bit : bits;
}

}  // namespace

uint32_t FusedSum(const mma::Arithmetic& arithmetic, std::span<const Product> products,
                  uint32_t addend) {
  const Number c = Decode(arithmetic.sum, addend);
  if (const auto special = SpecialsOf(products, c).Result(arithmetic.sum)) return *special;

  int aligning = c.significand != 0 ? c.exponent : kNone;
  for (const Product& product : products) {
    if (IsNonZero(product)) aligning = std::max(aligning, ExponentOf(product));
  }
  if (aligning == kNone) return 0;
  aligning = std::max(aligning, int{arithmetic.floor});

  const int unit = aligning - arithmetic.fraction_bits;
  int64_t sum = 0;
  for (const Product& product : products) {
    if (!IsNonZero(product)) continue;
    const uint64_t magnitude = uint64_t{product.a.significand} * product.b.significand;
    const int exponent = ExponentOf(product) - product.a.fraction_bits - product.b.fraction_bits;
    sum += CutToUnits(magnitude, exponent, unit, product.a.negative != product.b.negative);
  }
  sum += CutToUnits(c.significand, c.exponent - c.fraction_bits, unit, c.negative);
  return Round(arithmetic, sum, unit);
}

uint32_t SumOfGroups(const mma::Arithmetic& arithmetic, std::span<const ScaledGroup> groups,
                     uint32_t addend) {
  const Number c = Decode(ElementType::kF32, addend);
  Specials specials = SpecialsOf({}, c);
  for (const ScaledGroup& group : groups) specials.nan = specials.nan || group.is_nan;
  if (const auto special = specials.Result(ElementType::kF32)) return *special;

  int aligning = c.significand != 0 ? c.exponent : kNone;
  for (const ScaledGroup& group : groups) {
    if (group.sum != 0) aligning = std::max(aligning, group.exponent);
  }
  if (aligning == kNone) return 0;
  aligning = std::max(aligning, int{arithmetic.floor});

  const int unit = aligning - arithmetic.fraction_bits;
  int64_t sum = CutToUnits(c.significand, c.exponent - c.fraction_bits, unit, c.negative);
  for (const ScaledGroup& group : groups) {
    if (group.sum == 0) continue;  // A zero sum does not affect `aligning`.
    const bool negative = group.sum < 0;
    const uint64_t magnitude = static_cast<uint64_t>(negative ? -group.sum : group.sum);
    sum += CutToUnits(magnitude, group.exponent - group.fraction_bits, unit, negative);
  }
  return Round(arithmetic, sum, unit);
}

uint32_t AddF32(uint32_t x, uint32_t y) {
  const float sum = std::bit_cast<float>(x) + std::bit_cast<float>(y);
  return std::isnan(sum) ? kNanF32 : std::bit_cast<uint32_t>(sum);
}

uint32_t AddScaledF32(uint32_t x, float factor, uint32_t y) {
  const float sum = std::fma(std::bit_cast<float>(x), factor, std::bit_cast<float>(y));
  return std::isnan(sum) ? kNanF32 : std::bit_cast<uint32_t>(sum);
}

// Adds in f32, whose 24 bits are enough for the second rounding to be harmless.
uint32_t AddF16(uint32_t x, uint32_t y) { return F16FromF32(AddF32(F32FromF16(x), F32FromF16(y))); }

uint32_t MultiplyAdds(ElementType sum, std::span<const uint32_t, 4> a_f16,
                      std::span<const uint32_t, 4> b_f16, uint32_t addend) {
  float a[4];
  float b[4];
  for (size_t i = 0; i < 4; ++i) {
    a[i] = std::bit_cast<float>(F32FromF16(a_f16[i]));
    b[i] = std::bit_cast<float>(F32FromF16(b_f16[i]));
  }
  if (sum == ElementType::kF32) {
    float chain = 0;
    for (size_t i = 0; i < 4; ++i) chain = std::fma(a[i], b[i], chain);
    return AddF32(addend, std::bit_cast<uint32_t>(chain));
  }
  const float c = std::bit_cast<float>(F32FromF16(addend));
  const float low = std::fma(a[1], b[1], a[0] * b[0]);
  const float high = std::fma(a[3], b[3], a[2] * b[2]);
  return F16FromF32(std::bit_cast<uint32_t>((c + low) + high));
}

uint64_t MultiplyAddF64(uint64_t a, uint64_t b, uint64_t addend) {
  constexpr uint64_t kInfinity = uint64_t{0x7ff} << 52;
  constexpr uint64_t kMagnitude = ~(uint64_t{1} << 63);
  constexpr uint64_t kQuiet = uint64_t{1} << 51;
  constexpr uint64_t kNewNan = 0xfff8000000000000;
  for (const uint64_t operand : {b, addend, a}) {
    if ((operand & kMagnitude) > kInfinity) return operand | kQuiet;
  }
  const double result =
      std::fma(std::bit_cast<double>(a), std::bit_cast<double>(b), std::bit_cast<double>(addend));
  return std::isnan(result) ? kNewNan : std::bit_cast<uint64_t>(result);
}

uint32_t AddInteger(int64_t exact, uint32_t addend, bool saturates) {
  if (!saturates) return static_cast<uint32_t>(static_cast<uint64_t>(exact) + addend);
  const int64_t sum = exact + static_cast<int32_t>(addend);
  const int64_t clamped = std::clamp<int64_t>(sum, std::numeric_limits<int32_t>::min(),
                                              std::numeric_limits<int32_t>::max());
  return static_cast<uint32_t>(clamped);
}

ScopedRounding::ScopedRounding(mma::Rounding rounding) : restored_(std::fegetround()) {
  switch (rounding) {
    case mma::Rounding::kNearestEven: std::fesetround(FE_TONEAREST); break;
    case mma::Rounding::kTowardZero: std::fesetround(FE_TOWARDZERO); break;
    case mma::Rounding::kDown: std::fesetround(FE_DOWNWARD); break;
    case mma::Rounding::kUp: std::fesetround(FE_UPWARD); break;
  }
}

ScopedRounding::~ScopedRounding() { std::fesetround(restored_); }

}  // namespace gemmd::sim
