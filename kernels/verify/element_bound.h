// SPDX-License-Identifier: Apache-2.0
//
// What an element of D must be within where a library adds in an order of its own: the bound of
// client/matrix/verify.h over the words of kernels/. The client knows no kernels and the server
// no client, so the formulas stand in both.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/problem.h"

namespace gemmd::verify {

// The terms of one element of A B, in f64.
struct DotProduct {
  double sum = 0;
  double magnitude = 0;   // The sum of the absolute values; infinite where one overflows.
  double flushable = 0;   // The part of it that has a factor below 2^-126.
  double non_finite = 0;  // The infinite and NaN products; 0 where there are none.
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
  bool is_decidable = true;  // Whether one order of summation overflows as each other does.
};
BoundedElement BoundOf(const Recipe& recipe, const Problem& problem, const DotProduct& dot,
                       const EpilogueTerms& terms);

// Whether `bits` may be the conversion of such an element to D's type; where not, `nearest` is the
// code nearest to them that may.
bool IsWithin(ElementType type, uint64_t bits, const BoundedElement& element, uint64_t& nearest);

}  // namespace gemmd::verify
