// SPDX-License-Identifier: Apache-2.0
//
// The error bound of an element of D that a library computed in an unspecified order of summation.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/matrix/product_options.h"
#include "kernels/mma/element_type.h"

namespace gemmd {

// The terms of one element of A B, in f64.
struct DotProduct {
  double sum = 0;         // Sum of the finite products.
  double magnitude = 0;   // Sum of their absolute values; infinite if one overflows f64.
  double flushable = 0;   // The part of `magnitude` that has a factor below 2^-126.
  double non_finite = 0;  // Sum of the infinite and NaN products; 0 if there are none.
};
void AddProduct(double a, double b, DotProduct& dot);

// The exact element lies within `error` of `value`, before its conversion to D's type.
struct BoundedElement {
  double value = 0;
  double error = 0;
  // Whether overflow does not depend on the order of summation.
  bool is_decidable = true;
};

// The accumulator of a dot product that is summed in a type with `roundings` roundings: one for
// each k, more with block factors. If `narrow_depth` is not 0, so many products at a time are
// summed with 13 fraction bits, as tensor cores sum 8-bit floats.
BoundedElement AccumulatorOf(const DotProduct& dot, ElementType accumulation, int64_t roundings,
                             int64_t narrow_depth = 0);

// Multiplies and adds with the rounding of the epilogue, in f64 if it is wide and else in f32, and
// maintains the error bound.
class EpilogueBound {
 public:
  EpilogueBound(bool is_wide, const BoundedElement& accumulator)
      : is_wide_(is_wide), element_(accumulator) {}

  // Multiplies by the product of two f32 factors, which the epilogue rounds first.
  void Scale(double a_scale, double b_scale);
  // Multiplies by alpha, after it was rounded to the epilogue's type.
  void Multiply(double alpha);
  // Adds factor * term, after the factor was rounded to the epilogue's type.
  void AddTerm(double factor, double term);
  // Applies an activation, whose result for the value is `activated`.
  void Activate(Activation activation, double activated);

  const BoundedElement& element() const { return element_; }

 private:
  double Narrowed(double scalar) const;
  void MultiplyAndRound(double factor, int roundings);
  void Round(int count);

  const bool is_wide_;
  BoundedElement element_;
};

// The least and the largest value of D that a finite element may become, in D's type.
std::pair<double, double> ConversionsOf(ElementType type, const BoundedElement& element);

// Whether `got` may be the conversion of such an element. NaN is right only if the element is NaN
// and the type has one; infinity only if the conversion yields it.
bool IsConversionOf(ElementType type, double got, const BoundedElement& element);

}  // namespace gemmd
