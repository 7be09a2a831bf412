// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/record/float_source.h"

#include <cmath>

#include "kernels/matrix/element.h"

namespace gemmd {
namespace {

int GreatestOf(const FloatFormat& format) {
  const int top = (1 << format.exponent_bits) - 1 - format.bias;
  return format.has_infinity ? top - 1 : top;
}

}  // namespace

FloatSource::FloatSource(ElementType type, RandomNumbers& random)
    : type_(type),
      format_(FactsOf(type).format),
      padding_(BitsOf(type) - 1 - format_.exponent_bits - format_.fraction_bits),
      mask_(BitsOf(type) == 64 ? ~uint64_t{0} : (uint64_t{1} << BitsOf(type)) - 1),
      sign_(uint64_t{1} << (BitsOf(type) - 1)),
      greatest_(GreatestOf(format_)),
      random_(random) {}

uint64_t FloatSource::Make(bool negative, int exponent, uint64_t fraction) const {
  const uint64_t one = uint64_t{1} << format_.fraction_bits;
  fraction &= one - 1;
  if (exponent > greatest_) {
    exponent = greatest_;
    fraction = one - 1;
  }
  // In e4m3 the pattern of all ones is a NaN.
  const bool is_nan = format_.has_nan && !format_.has_infinity && exponent == greatest_;
  if (is_nan && fraction == one - 1) --fraction;
  uint64_t magnitude = fraction;
  if (exponent >= least()) {
    magnitude |= static_cast<uint64_t>(exponent + format_.bias) << format_.fraction_bits;
  } else {
    const int shift = least() - exponent;
    magnitude = shift > format_.fraction_bits ? 0 : (one | fraction) >> shift;
  }
  return magnitude << padding_ | (negative ? sign_ : 0);
}

uint64_t FloatSource::Power(int exponent) { return Make(random_.Flip(), exponent, 0); }

uint64_t FloatSource::With(int exponent) { return Make(random_.Flip(), exponent, random_.Bits()); }

uint64_t FloatSource::Between(int low, int high) {
  return With(static_cast<int>(random_.Between(low, high)));
}

uint64_t FloatSource::Full(bool negative, int exponent) const {
  return Make(negative, exponent, ~uint64_t{0});
}

uint64_t FloatSource::Zero() { return random_.Flip() ? sign_ : 0; }

uint64_t FloatSource::Subnormal() {
  const uint64_t fraction = random_.Bits() & ((uint64_t{1} << format_.fraction_bits) - 1);
  // Every magnitude occurs.
  return fraction >> random_.Between(0, format_.fraction_bits) << padding_ | Zero();
}

uint64_t FloatSource::Any() { return random_.Bits() & mask_; }

uint64_t FloatSource::Finite() {
  while (true) {
    const uint64_t bits = Any();
    if (std::isfinite(Decode(type_, bits))) return bits;
  }
}

uint64_t FloatSource::Infinity() {
  if (!format_.has_infinity) return Full(random_.Flip(), greatest_);
  return ((uint64_t{1} << format_.exponent_bits) - 1) << (format_.fraction_bits + padding_) |
         Zero();
}

uint64_t FloatSource::Nan() {
  if (!format_.has_nan) return Full(random_.Flip(), greatest_);
  if (!format_.has_infinity) return (mask_ & ~sign_) | Zero();
  const auto largest = static_cast<int64_t>((uint64_t{1} << format_.fraction_bits) - 1);
  const auto payload = static_cast<uint64_t>(random_.Between(1, largest));
  return (Infinity() & ~sign_) | payload << padding_ | Zero();
}

uint64_t FloatSource::Normal() { return Nearest(random_.Normal()); }

uint64_t FloatSource::Nearest(double value) const {
  const uint64_t bits = Encode(type_, value);
  return std::isfinite(Decode(type_, bits)) ? bits : Full(value < 0, greatest_);
}

uint64_t FloatSource::Stepped(uint64_t bits, int64_t steps) const {
  const uint64_t stepped = bits + (static_cast<uint64_t>(steps) << padding_);
  const bool keeps_sign = ((stepped ^ bits) & sign_) == 0 && stepped <= mask_;
  return keeps_sign && std::isfinite(Decode(type_, stepped)) ? stepped : bits;
}

}  // namespace gemmd
