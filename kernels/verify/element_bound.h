// SPDX-License-Identifier: Apache-2.0
//
// The error bound of an element of D from a library with an unspecified order of summation: the
// bound of client/matrix/verify.h in terms of kernels/. Client and server must not include each
// other, so both have the formulas.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/problem.h"

namespace gemmd::verify {

// The terms of one element of A B, in f64.
struct DotProduct {
  double sum = 0;
  double magnitude = 0;   // The sum of the absolute values; infinite if one overflows.
  double flushable = 0;   // The part of `magnitude` with a factor below 2^-126.
  double non_finite = 0;  // The infinite and NaN products; 0 if there are none.
};
void AddProduct(double a, double b, DotProduct& dot);

// What the epilogue adds to an element, as the problem says.
struct EpilogueTerms {
  double scale = 1;
  bool has_scale = false;
  double c = 0;
  double bias = 0;
};

// The exact element lies within `error` of `value`, before its conversion to D's type.
struct BoundedElement {
  double value = 0;
  double error = 0;
  bool is_decidable = true;  // Whether overflow does not depend on the order of summation.
};
BoundedElement BoundOf(const Recipe& recipe, const Problem& problem, const DotProduct& dot,
                       const EpilogueTerms& terms);

// Whether `bits` may be the conversion of such an element to D's type; if not, sets `nearest` to
// the nearest code that may be.
bool IsWithin(ElementType type, uint64_t bits, const BoundedElement& element, uint64_t& nearest);

}  // namespace gemmd::verify
