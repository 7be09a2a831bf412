// SPDX-License-Identifier: Apache-2.0
#include "kernels/verify/element_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/activation.h"
#include "kernels/matrix/element.h"

namespace gemmd::verify {
namespace {

constexpr double kF64Roundoff = 0x1p-53;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The properties of a type's arithmetic that bounds depend on.
struct Precision {
  double roundoff;  // Unit roundoff.
  double tiny;  // Max absolute error of one operation near zero, where small results may be flushed
                // to zero.
  double largest;  // Largest finite value.
};

Precision PrecisionOf(ElementType type) {
  switch (type) {
    case ElementType::kF64:
    case ElementType::kS32: return {kF64Roundoff, 0x1p-1022, std::numeric_limits<double>::max()};
    case ElementType::kF16: return {0x1p-11, 0x1p-25, 65504};
    default: return {0x1p-24, 0x1p-126, std::numeric_limits<float>::max()};
  }
}

bool IsTiny(double value) { return value != 0 && std::fabs(value) < 0x1p-126; }

// Multiplies and adds with the epilogue's rounding, and maintains the error bound.
class Epilogue {
 public:
  Epilogue(const Precision& precision, BoundedElement element)
      : precision_(precision), element_(element) {}

  const BoundedElement& element() const { return element_; }

  // Multiplies by a factor that may have been rounded `roundings` times.
  void Multiply(double factor, int roundings) {
    element_.value *= factor;
    element_.error *= std::fabs(factor);
    Round(roundings + 1);
  }

  // Adds factor * term, after both were rounded to the epilogue's type.
  void AddTerm(double factor, double term) {
    const double product = factor * term;
    element_.value += product;
    element_.error += 2 * roundoff() * std::fabs(product) + precision_.tiny;
    Round(1);
  }

  void Apply(Activation activation) {
    const double x = element_.value;
    if (activation == Activation::kNone) return;
    element_.value = Activate(activation, x);
    if (activation == Activation::kRelu) return;
    // The slopes of gelu and silu stay below 1.13; their evaluation loses a few roundings of x,
    // most of it where 1 + erf(x) cancels.
    constexpr double kSteepest = 1.13;
    constexpr int kRoundings = 16;
    if (x == -kInfinity) element_.is_decidable = false;  // 0 or NaN.
    if (!std::isfinite(x)) return;
    element_.error =
        kSteepest * element_.error + kRoundings * roundoff() * std::fabs(x) + precision_.tiny;
  }

 private:
  double roundoff() const { return precision_.roundoff + kF64Roundoff; }

  void Round(int count) {
    element_.error +=
        count * roundoff() * (std::fabs(element_.value) + element_.error) + precision_.tiny;
    const bool is_safe = std::fabs(element_.value) + element_.error < precision_.largest;
    if (std::isfinite(element_.value) && !is_safe) element_.is_decidable = false;
  }

  Precision precision_;
  BoundedElement element_;
};

// The accumulator before the epilogue on a machine of `precision`.
BoundedElement Accumulated(const DotProduct& dot, int64_t k, const Precision& precision) {
  const double count = static_cast<double>(k);
  const double gamma = count * precision.roundoff / (1 - count * precision.roundoff);
  const double f64_gamma = count * kF64Roundoff / (1 - count * kF64Roundoff);
  BoundedElement element;
  element.is_decidable = gamma >= 0 && dot.magnitude * (1 + gamma) < precision.largest;
  if (dot.non_finite != 0 || std::isnan(dot.non_finite)) {
    element.value = dot.non_finite;
    return element;
  }
  element.value = dot.sum;
  element.error = (gamma + f64_gamma) * dot.magnitude + dot.flushable + count * precision.tiny;
  return element;
}

}  // namespace

void AddProduct(double a, double b, DotProduct& dot) {
  const double product = a * b;
  const bool has_tiny = IsTiny(a) || IsTiny(b);
  if (std::isfinite(product)) {
    dot.sum += product;
    dot.magnitude += std::fabs(product);
    if (has_tiny) dot.flushable += std::fabs(product);
    return;
  }
  dot.non_finite += product;
  // An overflow, or infinity times a value that may be flushed to zero: depends on the machine.
  if (has_tiny || (std::isfinite(a) && std::isfinite(b))) dot.magnitude = kInfinity;
}

BoundedElement BoundOf(const Recipe& recipe, const Problem& problem, const DotProduct& dot,
                       const EpilogueTerms& terms) {
  // The accumulator may be more precise than requested, but never less.
  const bool is_wide = recipe.accumulation == ElementType::kF64;
  BoundedElement accumulated;
  if (problem.has_product()) {
    accumulated = Accumulated(dot, problem.k, PrecisionOf(recipe.accumulation));
  }
  const auto narrowed = [&](double scalar) {
    return is_wide ? scalar : static_cast<double>(static_cast<float>(scalar));
  };
  Epilogue epilogue(PrecisionOf(is_wide ? ElementType::kF64 : ElementType::kF32), accumulated);
  if (problem.has_product()) {
    if (terms.has_scale) epilogue.Multiply(terms.scale, 1);
    if (problem.alpha != 1) epilogue.Multiply(narrowed(problem.alpha), 0);
  }
  if (problem.has_c()) epilogue.AddTerm(narrowed(problem.beta), terms.c);
  if (problem.bias_axis != BiasAxis::kNone) epilogue.AddTerm(1, terms.bias);
  epilogue.Apply(problem.activation);
  return epilogue.element();
}

bool IsWithin(ElementType type, uint64_t bits, const BoundedElement& element, uint64_t& nearest) {
  const double got = Decode(type, bits);
  if (std::isnan(element.value)) {
    nearest = Encode(type, element.value);
    return FactsOf(type).format.has_nan ? std::isnan(got) : got == Decode(type, nearest);
  }
  if (std::isinf(element.value)) {
    // Finite terms do not affect an infinite or NaN result, so they add no error.
    nearest = Encode(type, element.value);
    const double want = Decode(type, nearest);
    return got == want || (std::isnan(got) && std::isnan(want));
  }
  double least = element.value - element.error;
  double most = element.value + element.error;
  if (element.error != 0) {
    // The sums round in f64; widening by one neighbour keeps the range safe.
    least = std::nextafter(least, -kInfinity);
    most = std::nextafter(most, kInfinity);
  }
  const double low = Decode(type, Encode(type, least));
  const double high = Decode(type, Encode(type, most));
  nearest = Encode(type, got > high ? most : got < low ? least : element.value);
  return low <= got && got <= high;
}

}  // namespace gemmd::verify
