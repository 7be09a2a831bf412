// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/element_bound.h"

#include <cmath>

#include "kernels/activation.h"
#include "kernels/matrix/element.h"

namespace gemmd::verify {

BoundedElement BoundOf(const Recipe& recipe, const Problem& problem, const DotProduct& dot,
                       const EpilogueTerms& terms) {
  // The accumulator may be more precise than requested, but never less.
  const bool is_wide = recipe.accumulation == ElementType::kF64;
  BoundedElement accumulator;
  if (problem.has_product()) accumulator = AccumulatorOf(dot, recipe.accumulation, problem.k);
  EpilogueBound epilogue(is_wide, accumulator);
  if (problem.has_product()) {
    if (problem.has_scales()) epilogue.Scale(terms.a_scale, terms.b_scale);
    if (problem.alpha != 1) epilogue.Multiply(problem.alpha);
  }
  if (problem.has_c()) epilogue.AddTerm(problem.beta, terms.c);
  if (problem.bias_axis != BiasAxis::kNone) epilogue.AddTerm(1, terms.bias);
  epilogue.Activate(problem.activation, Activate(problem.activation, epilogue.element().value));
  return epilogue.element();
}

bool IsWithin(ElementType type, uint64_t bits, const BoundedElement& element, uint64_t& nearest) {
  const double got = Decode(type, bits);
  double value = element.value;
  if (std::isfinite(value)) {
    const auto [min, max] = ConversionsOf(type, element);
    if (got > max) value = max;
    if (got < min) value = min;
  }
  nearest = Encode(type, value);
  return IsConversionOf(type, got, element);
}

}  // namespace gemmd::verify
