// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/bench/record/families.h"
#include "kernels/matrix/element.h"

namespace gemmd {
namespace {

// Splits the exponent of a product between its factors, as far as their types allow.
struct Exponents {
  int a;
  int b;
};

Exponents Share(const FloatOperands& floats, int product) {
  const int a = std::clamp(product / 2, floats.a.min_subnormal(), floats.a.greatest());
  const int b = std::clamp(product - a, floats.b.min_subnormal(), floats.b.greatest());
  return {std::clamp(product - b, floats.a.min_subnormal(), floats.a.greatest()), b};
}

int RandomInt(OperandFiller& filler, int low, int high) {
  return static_cast<int>(filler.random().Between(low, high));
}

// The exponent below which sums drop bits differs by a few binades from chip to chip; it lies a
// little below the least exponent of the sum.
void FillAboutTheFloor(FloatOperands& floats, OperandFiller& filler) {
  const Exponents least = Share(floats, floats.c.least() + RandomInt(filler, -13, 2));
  const int width = RandomInt(filler, 0, 3);
  filler.FillA([&](int, int) { return floats.a.Between(least.a, least.a + width); });
  filler.FillB([&](int, int) { return floats.b.Between(least.b, least.b + width); });
  filler.FillC([&](int, int) { return floats.c.Zero(); });
}

// Sums of halves of the smallest step of f16, a few with a smaller term that breaks the tie.
void FillMinSteps(FloatOperands& floats, OperandFiller& filler) {
  constexpr int kHalfStep = -25;
  RandomNumbers& random = filler.random();
  const Exponents half = Share(floats, kHalfStep);
  const auto ties = static_cast<int>(random.Between(0, filler.depth()));
  filler.FillA([&](int, int i) {
    if (i < ties) return floats.a.Power(half.a);
    return random.Between(0, 15) == 0 ? floats.a.Power(half.a - 4) : floats.a.Zero();
  });
  filler.FillB([&](int, int) { return floats.b.Power(half.b); });
  filler.FillC([&](int, int) {
    return floats.c.Nearest(std::ldexp(static_cast<double>(random.Between(-8, 8)), kHalfStep + 1));
  });
}

// One large term, a product or C, and terms around the last bits that sums may keep: 10 bits below
// it for f16, 13 for narrow adders, 23 for f32 and up to 3 more.
void FillLastBits(FloatOperands& floats, OperandFiller& filler) {
  constexpr std::array<int, 9> kDistances = {10, 11, 12, 13, 14, 23, 24, 25, 26};
  RandomNumbers& random = filler.random();
  if (filler.instruction().d == ElementType::kF16 && random.Flip()) {
    return FillMinSteps(floats, filler);
  }
  const int distance = kDistances[static_cast<size_t>(RandomInt(filler, 0, 8))];
  const int top = std::min(floats.a.greatest() - 1, 12);
  const bool is_c_large = random.Flip();
  const int large = is_c_large ? -1 : RandomInt(filler, 0, filler.depth() - 1);
  filler.FillA([&](int, int i) {
    if (i == large) return floats.a.With(top);
    if (random.Flip()) return floats.a.Power(top - distance);
    return floats.a.With(top - distance - RandomInt(filler, 0, 8));  // These set sticky bits.
  });
  filler.FillB([&](int, int) { return floats.b.Power(0); });
  filler.FillC([&](int, int) {
    if (is_c_large) return floats.c.With(top);
    return random.Flip() ? floats.c.Zero() : floats.c.Power(top - distance - 1);
  });
}

// Pairs that cancel exactly, or a product and C that do, and much smaller terms.
void FillLargeCancellation(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  const int top = std::min(floats.a.greatest() - 1, 14);
  const bool has_pairs = random.Flip();
  const int large = RandomInt(filler, 0, filler.depth() - 1);
  const auto is_large = [&](int i) { return has_pairs ? i / 2 == large / 2 : i == large; };
  uint64_t a = 0;
  filler.FillA([&](int row, int i) {
    if (!is_large(i)) return floats.a.With(top - RandomInt(filler, 18, 30));
    if (!has_pairs) return floats.a.Make(row % 2 == 1, top, 0);
    a = i % 2 == 0 ? floats.a.With(top) : floats.a.Negated(a);
    return a;
  });
  filler.FillB([&](int, int) { return floats.b.Make(false, 0, 0); });
  filler.FillC([&](int row, int) {
    return has_pairs ? floats.c.With(top - RandomInt(filler, 18, 30))
                     : floats.c.Make(row % 2 == 0, top, 0);
  });
}

void FillZerosBesideLarge(FloatOperands& floats, OperandFiller& filler) {
  enum class Place : uint8_t { kZeroA, kZeroB, kSmall };
  std::vector<Place> places(static_cast<size_t>(filler.instruction().k));  // By k.
  for (Place& place : places) place = static_cast<Place>(RandomInt(filler, 0, 2));
  filler.FillA([&](int row, int i) {
    switch (places[static_cast<size_t>(filler.LogicalK(row, i))]) {
      case Place::kZeroA: return floats.a.Zero();
      case Place::kZeroB: return floats.a.With(floats.a.greatest());
      case Place::kSmall: break;
    }
    return floats.a.Between(-12, 0);
  });
  filler.FillB([&](int k, int) {
    switch (places[static_cast<size_t>(k)]) {
      case Place::kZeroA: return floats.b.With(floats.b.greatest());
      case Place::kZeroB: return floats.b.Zero();
      case Place::kSmall: break;
    }
    return floats.b.Between(-12, 0);
  });
  filler.FillC([&](int, int) {
    return filler.random().Flip() ? floats.c.Zero() : floats.c.Between(-16, 0);
  });
}

void FillWidestCarries(FloatOperands& floats, OperandFiller& filler) {
  const bool negative = filler.random().Flip();
  const Exponents top = {RandomInt(filler, -2, 2), RandomInt(filler, -2, 2)};
  RandomNumbers& random = filler.random();
  filler.FillA([&](int, int) {
    return floats.a.Stepped(floats.a.Full(negative, top.a), random.Between(-1, 0));
  });
  filler.FillB([&](int, int) { return floats.b.Full(false, top.b); });
  filler.FillC(
      [&](int, int) { return floats.c.Full(negative, top.a + top.b + RandomInt(filler, 0, 2)); });
}

// C is approximately what the sum lacks to half a step above the largest D.
void FillAboutOverflow(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  const FloatSource d(filler.instruction().d, random);
  const double largest = Decode(d.type(), d.Full(false, d.greatest()));
  const double half_step = std::ldexp(1, d.greatest() - d.fraction_bits() - 1);
  const Exponents top = Share(floats, d.greatest() - 4 - RandomInt(filler, 0, d.fraction_bits()));
  filler.FillA([&](int, int) { return floats.a.Between(top.a - 2, top.a); });
  filler.FillB([&](int, int) { return floats.b.Between(top.b - 2, top.b); });
  filler.FillC([&](int row, int column) {
    const double sign = (row + column) % 2 == 0 ? 1 : -1;
    const double missing = sign * largest - filler.Sum(row, column) + sign * half_step;
    return floats.c.Stepped(floats.c.Nearest(missing), random.Between(-1, 1));
  });
}

void FillSubnormalC(FloatOperands& floats, OperandFiller& filler) {
  const Exponents least =
      Share(floats, floats.c.least() - RandomInt(filler, 0, floats.c.fraction_bits() + 3));
  const bool has_products = RandomInt(filler, 0, 3) > 0;
  filler.FillA([&](int, int) { return has_products ? floats.a.With(least.a) : floats.a.Zero(); });
  filler.FillB([&](int, int) { return floats.b.With(least.b); });
  filler.FillC([&](int, int) { return floats.c.Subnormal(); });
}

// Few enough for a good part of the sums to be numbers.
void FillSpecials(FloatOperands& floats, OperandFiller& filler) {
  const auto element = [&](FloatSource& source, int others) {
    switch (RandomInt(filler, 0, others)) {
      case 0: return source.Nan();
      case 1:
      case 2: return source.Infinity();
      default: return filler.random().Flip() ? source.Power(0) : source.Zero();
    }
  };
  filler.FillA([&](int, int) { return element(floats.a, 6 * filler.depth()); });
  filler.FillB([&](int, int) { return element(floats.b, 6 * filler.depth()); });
  filler.FillC([&](int, int) { return element(floats.c, 12); });
}

}  // namespace

void FillDirected(int number, FloatOperands& floats, OperandFiller& filler) {
  constexpr std::array<void (*)(FloatOperands&, OperandFiller&), kDirectedFamilies> kFamilies = {
      FillAboutTheFloor, FillLastBits,      FillLargeCancellation, FillZerosBesideLarge,
      FillWidestCarries, FillAboutOverflow, FillSubnormalC,        FillSpecials};
  kFamilies[static_cast<size_t>(number)](floats, filler);
}

}  // namespace gemmd
