// SPDX-License-Identifier: Apache-2.0
#include "client/matrix/element_distance.h"

#include <cmath>

#include "gemmd/element_codec.h"
#include "gemmd/element_type.h"

namespace gemmd {
namespace {

// A float's place among those of its sign, counted from zero: patterns ascend as magnitudes do.
uint64_t MagnitudeOf(v1::ElementType type, uint64_t pattern) {
  const uint64_t sign = uint64_t{1} << (ElementBits(type) - 1);
  constexpr int kIgnoredBitsOfTf32 = 13;
  return (pattern & (sign - 1)) >> (type == v1::ELEMENT_TYPE_TF32 ? kIgnoredBitsOfTf32 : 0);
}

bool IsNegative(v1::ElementType type, uint64_t pattern) {
  return (pattern >> (ElementBits(type) - 1) & 1) != 0;
}

// Precondition: neither is NaN, so that the sum of two magnitudes of f64 is below 2^64.
uint64_t FloatSteps(v1::ElementType type, uint64_t a, uint64_t b) {
  const uint64_t of_a = MagnitudeOf(type, a);
  const uint64_t of_b = MagnitudeOf(type, b);
  if (IsNegative(type, a) != IsNegative(type, b)) return of_a + of_b;
  return of_a > of_b ? of_a - of_b : of_b - of_a;
}

}  // namespace

ElementDistance DistanceOf(v1::ElementType type, uint64_t a, uint64_t b) {
  const double of_a = ElementValue(type, a);
  const double of_b = ElementValue(type, b);
  ElementDistance distance;
  // Equal infinities are no distance apart; their difference would be NaN.
  distance.absolute = of_a == of_b ? 0 : std::fabs(of_b - of_a);
  distance.relative = distance.absolute == 0 ? 0 : distance.absolute / std::fabs(of_a);
  if (std::isnan(of_a) || std::isnan(of_b)) return distance;
  distance.ulps = IsFloat(type) ? FloatSteps(type, a, b) : static_cast<uint64_t>(distance.absolute);
  return distance;
}

}  // namespace gemmd
