// SPDX-License-Identifier: Apache-2.0
//
// The error bound (kernels/matrix/bound.h) of an element of a kernel's D.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/matrix/bound.h"
#include "kernels/problem.h"

namespace gemmd::verify {

// What the epilogue adds to an element, as the problem says.
struct EpilogueTerms {
  double a_scale = 1;
  double b_scale = 1;
  double c = 0;
  double bias = 0;
};

BoundedElement BoundOf(const Recipe& recipe, const Problem& problem, const DotProduct& dot,
                       const EpilogueTerms& terms);

// Whether `bits` may be the conversion of such an element to D's type; if not, sets `nearest` to
// the nearest code that may be.
bool IsWithin(ElementType type, uint64_t bits, const BoundedElement& element, uint64_t& nearest);

}  // namespace gemmd::verify
