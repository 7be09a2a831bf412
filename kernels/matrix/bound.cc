// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/bound.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/matrix/element.h"

namespace gemmd {
namespace {

constexpr double kF64Roundoff = 0x1p-53;
constexpr double kNarrowRoundoff = 0x1p-12;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The properties of a type's arithmetic that bounds depend on.
struct Precision {
  double roundoff;  // Unit roundoff.
  // Max absolute error of one operation near zero, where small results may be flushed to zero.
  double tiny;
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

Precision PrecisionOfEpilogue(bool is_wide) {
  return PrecisionOf(is_wide ? ElementType::kF64 : ElementType::kF32);
}

bool IsTiny(double value) { return value != 0 && std::fabs(value) < 0x1p-126; }

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

BoundedElement AccumulatorOf(const DotProduct& dot, ElementType accumulation, int64_t roundings,
                             int64_t narrow_depth) {
  const Precision precision = PrecisionOf(accumulation);
  const double count = static_cast<double>(roundings);
  const double narrow = static_cast<double>(narrow_depth) * kNarrowRoundoff;
  const double gamma =
      count * precision.roundoff / (1 - count * precision.roundoff) + narrow / (1 - narrow);
  const double f64_gamma = count * kF64Roundoff / (1 - count * kF64Roundoff);
  BoundedElement element;
  element.is_decidable =
      gamma >= 0 && narrow < 1 && dot.magnitude * (1 + gamma) < precision.largest;
  if (dot.non_finite != 0 || std::isnan(dot.non_finite)) {
    element.value = dot.non_finite;
    return element;
  }
  element.value = dot.sum;
  element.error = (gamma + f64_gamma) * dot.magnitude + dot.flushable + count * precision.tiny;
  return element;
}

// The product of the factors may overflow, or be flushed to zero, where the element would not be.
void EpilogueBound::Scale(double a_scale, double b_scale) {
  const Precision precision = PrecisionOfEpilogue(is_wide_);
  const double scale = a_scale * b_scale;
  if (!(std::fabs(scale) < precision.largest)) element_.is_decidable = false;
  const double lost =
      scale == 0 ? 0 : precision.tiny * (std::fabs(element_.value) + element_.error);
  MultiplyAndRound(scale, 2);
  if (std::isfinite(lost)) element_.error += lost;
}

void EpilogueBound::Multiply(double alpha) {
  const double factor = Narrowed(alpha);
  // Infinity times what may be zero or of either sign.
  if (!std::isfinite(factor)) element_.is_decidable = false;
  MultiplyAndRound(factor, 1);
}

void EpilogueBound::AddTerm(double factor, double term) {
  const Precision precision = PrecisionOfEpilogue(is_wide_);
  const double product = Narrowed(factor) * term;
  // The product may overflow where the element would not, or where the element is infinite.
  const bool is_safe = std::fabs(product) < precision.largest;
  if (std::isfinite(product) && !is_safe) element_.is_decidable = false;
  element_.value += product;
  element_.error += 2 * (precision.roundoff + kF64Roundoff) * std::fabs(product) + precision.tiny;
  Round(1);
}

// The slopes of gelu and silu stay below 1.13; their evaluation loses a few roundings of x, most of
// it where 1 + erf(x) cancels.
void EpilogueBound::Activate(Activation activation, double activated) {
  constexpr double kSteepest = 1.13;
  constexpr int kRoundings = 16;
  if (activation == Activation::kNone) return;
  const double x = std::exchange(element_.value, activated);
  if (activation == Activation::kRelu) return;
  if (x == -kInfinity) element_.is_decidable = false;  // 0 or NaN.
  if (!std::isfinite(x)) return;
  const Precision precision = PrecisionOfEpilogue(is_wide_);
  element_.error = kSteepest * element_.error +
                   kRoundings * (precision.roundoff + kF64Roundoff) * std::fabs(x) + precision.tiny;
}

double EpilogueBound::Narrowed(double scalar) const {
  return is_wide_ ? scalar : static_cast<double>(static_cast<float>(scalar));
}

void EpilogueBound::MultiplyAndRound(double factor, int roundings) {
  element_.value *= factor;
  element_.error *= std::fabs(factor);
  Round(roundings);
}

void EpilogueBound::Round(int count) {
  const Precision precision = PrecisionOfEpilogue(is_wide_);
  element_.error +=
      count * (precision.roundoff + kF64Roundoff) * (std::fabs(element_.value) + element_.error) +
      precision.tiny;
  const bool is_safe = std::fabs(element_.value) + element_.error < precision.largest;
  if (std::isfinite(element_.value) && !is_safe) element_.is_decidable = false;
}

std::pair<double, double> ConversionsOf(ElementType type, const BoundedElement& element) {
  double min = element.value - element.error;
  double max = element.value + element.error;
  if (!(element.error == 0)) {
    // The sums round in f64; widening by one neighbour keeps the range safe.
    min = std::nextafter(min, -kInfinity);
    max = std::nextafter(max, kInfinity);
  }
  return {Decode(type, Encode(type, min)), Decode(type, Encode(type, max))};
}

bool IsConversionOf(ElementType type, double got, const BoundedElement& element) {
  if (std::isfinite(element.value)) {
    const auto [min, max] = ConversionsOf(type, element);
    return min <= got && got <= max;
  }
  // Finite terms do not affect an infinite or NaN result, so they add no error.
  const double want = Decode(type, Encode(type, element.value));
  if (std::isnan(element.value) && FactsOf(type).format.has_nan) return std::isnan(got);
  return got == want || (std::isnan(got) && std::isnan(want));
}

}  // namespace gemmd
