// SPDX-License-Identifier: Apache-2.0
//
// The activations in f64 and in f32, made of additions, multiplications, divisions and bit moves
// only, so that host and device code give the same bits. (Libraries differ in the last bits of exp
// and erfc.) Everything that includes this header is compiled without contraction into fused
// multiply-adds.
//
// In f64, Exp is within 1 unit in the last place of the exact value, Erfc within 4. In f32, an
// activation of x is within 6 * 2^-24 |x| + 2^-149 of the exact value: about as much as it would
// change if x, itself a rounded sum, changed in its last place.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/matrix/product_options.h"

namespace gemmd {

template <typename T>
constexpr T PolynomialByPairs(T, T, T c0) {
  return c0;
}
template <typename T>
constexpr T PolynomialByPairs(T x, T, T c0, T c1) {
  return c0 + c1 * x;
}
template <typename T, typename... Coefficients>
constexpr T PolynomialByPairs(T x, T square, T c0, T c1, Coefficients... rest) {
  return c0 + (c1 * x + square * PolynomialByPairs(x, square, rest...));
}

// c0 + c1 x + c2 x^2 ..., with two steps of Horner's rule at a time, which halves the chain of
// dependent operations.
template <typename T, typename... Coefficients>
constexpr T Polynomial(T x, T c0, Coefficients... rest) {
  return PolynomialByPairs(x, x * x, c0, rest...);
}

// significand * 2^exponent; the significand is near 1.
struct ScaledNumber {
  double significand;
  int32_t exponent;
};

// e^(high + low), where |high| < 800 and |low| < 2^-13.
//
// The exponent is the multiple n of ln 2 nearest to `high`; the rest r, |r| <= ln 2 / 2, goes into
// the Taylor series up to r^13, whose remainder is below 2^-57 of the result. ln 2 is split into
// two parts, the higher of 32 bits, so that n times it is exact; what rounding takes from r is
// added back at the end.
constexpr ScaledNumber ScaledExp(double high, double low) {
  constexpr double kRoundsToInteger = 0x1.8p52;
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42feep-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const double rounded = high * kLog2E + kRoundsToInteger;
  const auto exponent = static_cast<int32_t>(std::bit_cast<uint64_t>(rounded) & 0xffff'ffff);
  const double n = rounded - kRoundsToInteger;
  const double r_high = high - n * kLn2High;
  const double r_low = low - n * kLn2Low;
  const double r = r_high + r_low;
  const double rest = r_low - (r - r_high);
  const double series = Polynomial(
      r, 0x1p-1, 0x1.5555555555555p-3, 0x1.5555555555555p-5, 0x1.1111111111111p-7,
      0x1.6c16c16c16c17p-10, 0x1.a01a01a01a01ap-13, 0x1.a01a01a01a01ap-16, 0x1.71de3a556c734p-19,
      0x1.27e4fb7789f5cp-22, 0x1.ae64567f544e4p-26, 0x1.1eed8eff8d898p-29, 0x1.6124613a86d09p-33);
  return {1 + (r + (rest + r * r * series)), exponent};
}

// The number as a double, rounded once more if it is subnormal. The significand is in [2^-20, 2].
// The exponent is at least -1200 and at most 1023, or 1024 if the significand is below 1.
constexpr double ValueOf(const ScaledNumber& number) {
  constexpr int32_t kMinNormal = -1000;
  constexpr int32_t kLift = 250;
  const bool is_tiny = number.exponent < kMinNormal;
  const auto exponent = static_cast<int64_t>(number.exponent + (is_tiny ? kLift : 0));
  const uint64_t bits =
      std::bit_cast<uint64_t>(number.significand) + (static_cast<uint64_t>(exponent) << 52);
  const double value = std::bit_cast<double>(bits);
  return is_tiny ? value * 0x1p-250 : value;
}

constexpr double Exp(double x) {
  constexpr double kLargest = 0x1.62e42fefa39efp+9;  // The last number whose result is finite.
  constexpr double kZeroBelow = -746;
  double within = x < kZeroBelow ? kZeroBelow : x;
  within = within > kLargest ? kLargest : within;
  const double value = ValueOf(ScaledExp(within, 0));
  if (x > kLargest) return std::numeric_limits<double>::infinity();
  return x != x ? x : value;
}

// (1 + 2 x) e^(x^2) erfc(x) for x in [0, 28], where t = (x - 3) / (x + 3). It is a smooth function
// of t, between 1 and 1.3. The polynomial goes through it at 23 Chebyshev nodes of t's range,
// computed with 60 digits; it is off by less than 2^-54.
constexpr double ScaledErfc(double t) {
  return Polynomial(
      t, 0x1.40c522d7e4987p+0, -0x1.15c084bb9e8e1p-3, -0x1.85a15c58aa35ep-5, 0x1.098366a5b3eabp-3,
      -0x1.e88b803a4d084p-4, 0x1.17ca287812733p-4, -0x1.8574c40a9b0e5p-6, 0x1.4b884e04cf18ap-9,
      0x1.ef1bdc7d439fep-10, -0x1.98db48cb9a9e4p-11, -0x1.b91224996e6cap-14, 0x1.06598f0ebfdadp-13,
      0x1.4c10888027b82p-18, -0x1.512a5f53c593fp-16, -0x1.869edff44bffcp-21, 0x1.d0ee0c85f55b9p-19,
      0x1.76ba2f4878a4cp-22, -0x1.44cf3c31a9fffp-21, -0x1.19921ee6be774p-23, 0x1.8a8bcf6b1dbf4p-24,
      0x1.1abfce4dab5a4p-25, -0x1.240fd782dbbf8p-27, -0x1.2150f332779a1p-28);
}

// 1 - erfc(x) for |x| < 1/2 by the Taylor series, whose remainder is below 2^-60 of the result.
constexpr double SmallErf(double x) {
  return x * Polynomial(x * x, 0x1.20dd750429b6dp+0, -0x1.812746b0379e7p-2, 0x1.ce2f21a042be2p-4,
                        -0x1.b82ce31288b51p-6, 0x1.565bcd0e6a53fp-8, -0x1.c02db40040b86p-11,
                        0x1.f9a326f9b89b7p-14, -0x1.f4d25c3e0c2ebp-17, 0x1.b9e6c9dc651a3p-20,
                        -0x1.5f742ec43e71ap-23, 0x1.fcc5720624c1cp-27, -0x1.51d7181c5d36dp-30,
                        0x1.9e6ad5e55a730p-34);
}

constexpr double Erfc(double x) {
  constexpr double kZeroFrom = 28;  // Half the least subnormal is reached at 27.23.
  constexpr uint64_t kUpperHalf = ~uint64_t{0} << 27;
  double magnitude = x < 0 ? -x : x;
  magnitude = magnitude > kZeroFrom ? kZeroFrom : magnitude;
  // The square in two parts; the higher one is exact, because `high` has few significant bits.
  const double high = std::bit_cast<double>(std::bit_cast<uint64_t>(magnitude) & kUpperHalf);
  const double square_low = (magnitude - high) * (magnitude + high);
  const ScaledNumber exp = ScaledExp(-(high * high), -square_low);
  const double factor = ScaledErfc((magnitude - 3) / (magnitude + 3)) / (1 + 2 * magnitude);
  const double value = ValueOf({exp.significand * factor, exp.exponent});
  if (x != x) return x;
  if (magnitude < 0.5) return 1 - SmallErf(x);
  return x < 0 ? 2 - value : value;
}

constexpr double Activate(Activation activation, double x) {
  constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;
  constexpr double kSqrtTwoOverPi = 0x1.9884533d43651p-1;
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x < 0 ? 0 : x;
    case Activation::kGeluErf: return x / 2 * Erfc(x / -kSqrt2);
    case Activation::kGeluTanh: {
      // x/2 * (1 + tanh(u)) without its cancellation for negative x.
      const double u = kSqrtTwoOverPi * (x + 0.044715 * x * x * x);
      return x / (1 + Exp(-2 * u));
    }
    case Activation::kSilu: return x / (1 + Exp(-x));
  }
  return x;
}

// 2^x for x <= 0, or 0 if it is below 2^-125; within 4 units in the last place. Any number for NaN.
// The polynomial minimizes the largest relative error between -1/2 and 1/2: it is 2^-23.7.
constexpr float Exp2OfNegative(float x) {
  constexpr float kRoundsToInteger = 0x1.8p23F;
  constexpr float kZeroBelow = -125;
  const float rounded = x + kRoundsToInteger;
  const float rest = x - (rounded - kRoundsToInteger);
  const float significand = Polynomial(rest, 0x1.000002p0F, 0x1.62e428p-1F, 0x1.ebf918p-3F,
                                       0x1.c6b6e4p-5F, 0x1.3d0c52p-7F, 0x1.5c08e8p-10F);
  const uint32_t bits =
      std::bit_cast<uint32_t>(significand) + (std::bit_cast<uint32_t>(rounded) << 23);
  return x < kZeroBelow ? 0 : std::bit_cast<float>(bits);
}

// x / (1 + 2^(-t)) for a t with the sign of x. GPUs divide 1 faster than a number that may be 0.
constexpr float TimesSigmoid(float x, float magnitude_of_t) {
  const float power = Exp2OfNegative(-magnitude_of_t);
  const float inverse = 1 / (1 + power);
  return (x < 0 ? x * power : x) * inverse;
}

// x times the normal distribution function of x: 1 - q if x is positive, q otherwise, where
// q = erfc(|x| / sqrt(2)) / 2 = 2^(-x^2 / (2 ln 2)) r(1 / (1 + 0.3 |x|)). The polynomial r
// minimizes the largest relative error up to |x| = 13.2: it is 2^-24.
constexpr float TimesNormalDistribution(float x) {
  constexpr float kOneOverTwoLn2 = 0x1.715476p-1F;
  const float magnitude = x < 0 ? -x : x;
  const float s = 1 / (1 + 0.3F * magnitude);
  const float r =
      Polynomial(s, 0x1.ba6a8cp-18F, 0x1.e9762ep-4F, 0x1.f319d8p-4F, 0x1.84eef2p-4F, 0x1.229d12p-3F,
                 -0x1.359df4p-4F, 0x1.d2a87ap-3F, -0x1.59a928p-3F, 0x1.39bea4p-5F);
  const float q = r * Exp2OfNegative(-(x * x * kOneOverTwoLn2));
  return x * (x < 0 ? q : 1 - q);
}

constexpr float Activate(Activation activation, float x) {
  constexpr float kLog2E = 0x1.715476p+0F;
  constexpr float kSlope = 0x1.26aec2p+1F;  // 2 sqrt(2 / pi) log2(e)
  constexpr float kCubic = 0x1.a5a7dp-4F;   // 0.044715 times that
  const float magnitude = x < 0 ? -x : x;
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x < 0 ? 0 : x;
    case Activation::kGeluErf: return TimesNormalDistribution(x);
    case Activation::kGeluTanh: return TimesSigmoid(x, magnitude * (kSlope + kCubic * (x * x)));
    case Activation::kSilu: return TimesSigmoid(x, magnitude * kLog2E);
  }
  return x;
}

}  // namespace gemmd
