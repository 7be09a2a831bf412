// SPDX-License-Identifier: Apache-2.0
//
// Random elements of one floating-point type with a chosen exponent: raw bits.
#pragma once

#include <cstdint>

#include "kernels/bench/record/random_numbers.h"
#include "kernels/mma/element_type.h"

namespace gemmd {

class FloatSource {
 public:
  FloatSource(ElementType type, RandomNumbers& random);

  ElementType type() const { return type_; }
  int least() const { return 1 - format_.bias; }  // Exponent of the least normal number.
  int min_subnormal() const { return least() - format_.fraction_bits; }
  int greatest() const { return greatest_; }  // Exponent of the largest number.
  int fraction_bits() const { return format_.fraction_bits; }

  // (-1)^negative * 1.fraction * 2^exponent; truncated to a subnormal below the normal numbers, and
  // the largest number above all of them.
  uint64_t Make(bool negative, int exponent, uint64_t fraction) const;

  // Numbers of either sign.
  uint64_t Power(int exponent);
  uint64_t With(int exponent);          // Any fraction; for tf32 also any bits after it.
  uint64_t Between(int low, int high);  // As Between, but with uniform exponents.
  uint64_t Zero();
  uint64_t Subnormal();  // May be zero.
  uint64_t Any();        // Any pattern.
  uint64_t Finite();     // Any finite pattern.
  uint64_t Infinity();   // The largest number in types without infinity.
  uint64_t Nan();        // Any payload; the largest number in types without NaN.
  uint64_t Normal();     // A normal variate.

  // Every bit of the fraction set.
  uint64_t Full(bool negative, int exponent) const;
  // The largest number on overflow.
  uint64_t Nearest(double value) const;

  uint64_t Negated(uint64_t bits) const { return bits ^ sign_; }
  // The number `steps` steps further from zero.
  uint64_t Stepped(uint64_t bits, int64_t steps) const;

 private:
  const ElementType type_;
  const FloatFormat format_;
  const int padding_;  // Ignored bits below the fraction, as tf32 has them.
  const uint64_t mask_;
  const uint64_t sign_;
  const int greatest_;
  RandomNumbers& random_;
};

}  // namespace gemmd
