// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/number.h"

#include <algorithm>
#include <bit>

namespace gemmd::sim {
namespace {

constexpr int kF16Fraction = 10;
constexpr int kF16LeastExponent = -14;
constexpr int kF16LargestExponent = 15;

// Rounds a finite value to f16, to nearest even; the sign stays if the value vanishes.
uint32_t RoundToF16(bool negative, uint64_t significand, int exponent_of_unit) {
  const uint32_t sign = negative ? 0x8000 : 0;
  if (significand == 0) return sign;
  const int exponent = 63 - std::countl_zero(significand) + exponent_of_unit;
  if (exponent > kF16LargestExponent) return sign | kInfinityF16;
  const int dropped = std::max(exponent, kF16LeastExponent) - kF16Fraction - exponent_of_unit;
  uint64_t kept = 0;
  if (dropped <= 0) {
    kept = significand << -dropped;
  } else if (dropped < 64) {
    kept = significand >> dropped;
    const uint64_t rest = significand - (kept << dropped);
    const uint64_t half = uint64_t{1} << (dropped - 1);
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  }
  // The leading one of `kept` adds itself to the exponent, and so does a carry out of the fraction.
  const int biased = std::max(exponent, kF16LeastExponent) - kF16LeastExponent;
  return sign | static_cast<uint32_t>((static_cast<uint64_t>(biased) << kF16Fraction) + kept);
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
  return RoundToF16(number.negative, number.significand, number.exponent - number.fraction_bits);
}

uint32_t F16FromFp8(ElementType type, uint32_t bits) {
  if (type == ElementType::kE5m2) return bits << 8;
  const Number number = Decode(type, bits);
  if (number.kind == NumberClass::kNan) return kNanF16;
  return RoundToF16(number.negative, number.significand, number.exponent - number.fraction_bits);
}

}  // namespace gemmd::sim
