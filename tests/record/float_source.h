// SPDX-License-Identifier: Apache-2.0
//
// Random elements of one floating-point type with a chosen exponent: raw bits.
#pragma once

#include <cstdint>

#include "kernels/mma/element_type.h"
#include "tests/testing/random_source.h"

namespace gemmd {

class FloatSource {
 public:
  FloatSource(ElementType type, RandomSource& random);

  ElementType type() const { return type_; }
  int least() const { return 1 - format_.bias; }  // Exponent of the least normal number.
  int min_subnormal() const { return least() - format_.fraction_bits; }
  int greatest() const { return greatest_; }  // Exponent of the largest number.
  int fraction_bits() const { return format_.fraction_bits; }

  // (-1)^negative * 1.fraction * 2^exponent; cut to a subnormal below the normal numbers, the
  // largest number above all.
  uint64_t Make(bool negative, int exponent, uint64_t fraction) const;

  // Numbers of either sign.
  uint64_t Power(int exponent);
  uint64_t With(int exponent);          // Any fraction, and for tf32 any bits after it.
  uint64_t Between(int low, int high);  // Likewise, exponents uniform.
  uint64_t Zero();
  uint64_t Subnormal();  // Zero included.
  uint64_t Any();        // Every pattern.
  uint64_t Finite();     // Every finite one.
  uint64_t Infinity();   // The largest number where there is none.
  uint64_t Nan();        // Any payload; the largest number where there is none.
  uint64_t Normal();     // A normal variate.

  // Every bit of the fraction set.
  uint64_t Full(bool negative, int exponent) const;
  // The largest number on overflow.
  uint64_t Nearest(double value) const;

  uint64_t Negated(uint64_t bits) const { return bits ^ sign_; }
  // The number some steps further from zero.
  uint64_t Stepped(uint64_t bits, int64_t steps) const;

 private:
  const ElementType type_;
  const FloatFormat format_;
  const int padding_;  // Bits below the fraction that do not count: those of tf32.
  const uint64_t mask_;
  const uint64_t sign_;
  const int greatest_;
  RandomSource& random_;
};

}  // namespace gemmd
