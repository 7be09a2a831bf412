// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/bench/record/families.h"

namespace gemmd {
namespace {

// A range of exponents.
struct Window {
  int low;
  int high;
};

// A range of varying width within the middle half of the type's exponents, so that products stay in
// the range of f32 where the operands have that range. Types with few exponents use their whole
// range.
Window AnyWindow(const FloatSource& source, RandomNumbers& random) {
  constexpr std::array<int, 5> kWidths = {4, 8, 16, 32, 60};
  const int divisor = source.greatest() > 64 ? 2 : 1;
  const int least = source.least() / divisor;
  const int greatest = source.greatest() / divisor;
  const auto low = static_cast<int>(random.Between(least, greatest - 1));
  return {low, std::min(greatest, low + kWidths[static_cast<size_t>(random.Between(0, 4))])};
}

void FillNormal(FloatOperands& floats, OperandFiller& filler) {
  filler.FillA([&](int, int) { return floats.a.Normal(); });
  filler.FillB([&](int, int) { return floats.b.Normal(); });
  filler.FillC([&](int, int) { return floats.c.Normal(); });
}

void FillWideExponents(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  const Window a = AnyWindow(floats.a, random);
  const Window b = AnyWindow(floats.b, random);
  filler.FillA([&](int, int) { return floats.a.Between(a.low, a.high); });
  filler.FillB([&](int, int) { return floats.b.Between(b.low, b.high); });
  filler.FillC([&](int, int) { return floats.c.Between(a.low + b.low, a.high + b.high); });
}

// Every other line is finite; otherwise hardly any sum would be a number.
void FillAnyBits(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  filler.FillA([&](int row, int) { return row % 2 == 0 ? floats.a.Any() : floats.a.Finite(); });
  filler.FillB(
      [&](int, int column) { return column % 2 == 0 ? floats.b.Any() : floats.b.Finite(); });
  filler.FillC([&](int, int) { return random.Flip() ? floats.c.Any() : floats.c.Finite(); });
}

// Pairs of A that are opposite except for a step or two meet the same element of B.
void FillNearlyCancellingPairs(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  uint64_t a = 0;
  filler.FillA([&](int, int i) {
    a = i % 2 == 0 ? floats.a.Normal()
                   : floats.a.Stepped(floats.a.Negated(a), random.Between(-2, 2));
    return a;
  });
  std::array<uint64_t, 256> line = {};  // The last line of B.
  const int stretch = filler.PairStretch();
  filler.FillB([&](int k, int column) {
    uint64_t& b = line[static_cast<size_t>(column)];
    if (k % stretch == 0) b = floats.b.Normal();
    return b;
  });
  filler.FillC([&](int, int) { return floats.c.Between(-24, 0); });
}

void FillDominatingC(FloatOperands& floats, OperandFiller& filler) {
  FillNormal(floats, filler);
  filler.FillC([&](int, int) { return floats.c.Between(0, 30); });
}

void FillSubnormals(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  const bool has_subnormal_b = random.Flip();
  filler.FillA([&](int, int) { return floats.a.Subnormal(); });
  filler.FillB([&](int, int) {
    return has_subnormal_b ? floats.b.Subnormal() : floats.b.Between(-1, floats.b.greatest());
  });
  filler.FillC([&](int, int) { return random.Flip() ? floats.c.Subnormal() : floats.c.Zero(); });
}

void FillPowersUnderOne(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  const int top = std::min(floats.a.greatest() - 1, 12);
  const auto large = static_cast<int>(random.Between(0, filler.depth() - 1));
  filler.FillA([&](int, int i) {
    return floats.a.Power(i == large ? top : top - static_cast<int>(random.Between(8, 28)));
  });
  filler.FillB([&](int, int) { return floats.b.Power(static_cast<int>(random.Between(-2, 0))); });
  filler.FillC(
      [&](int, int) { return random.Flip() ? floats.c.Zero() : floats.c.Power(top - 28); });
}

void FillSignedZeros(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  const int64_t others = random.Between(0, 2);  // The number of nonzero elements among eight.
  const auto element = [&](FloatSource& source) {
    return random.Between(0, 7) < others ? source.Normal() : source.Zero();
  };
  filler.FillA([&](int, int) { return element(floats.a); });
  filler.FillB([&](int, int) { return element(floats.b); });
  filler.FillC([&](int, int) { return element(floats.c); });
}

void FillNearOverflow(FloatOperands& floats, OperandFiller& filler) {
  const int top = floats.c.greatest();
  const int a = std::min(floats.a.greatest(), top / 2);
  const int b = std::min(floats.b.greatest(), top - a);
  filler.FillA([&](int, int) { return floats.a.Between(a - 2, a); });
  filler.FillB([&](int, int) { return floats.b.Between(b - 2, b); });
  filler.FillC([&](int, int) { return floats.c.Between(top - 3, top); });
}

void FillOneSign(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  const bool negative = random.Flip();
  const auto element = [&](const FloatSource& source, bool is_negative) {
    return source.Full(is_negative, static_cast<int>(random.Between(-1, 1)));
  };
  filler.FillA([&](int, int) { return element(floats.a, negative); });
  filler.FillB([&](int, int) { return element(floats.b, false); });
  filler.FillC([&](int, int) { return element(floats.c, negative); });
}

void FillCancellingC(FloatOperands& floats, OperandFiller& filler) {
  RandomNumbers& random = filler.random();
  FillNormal(floats, filler);
  filler.FillC([&](int row, int column) {
    const uint64_t c = floats.c.Nearest(-filler.Sum(row, column));
    return floats.c.Stepped(c, random.Between(-1, 1));
  });
}

void FillWideA(FloatOperands& floats, OperandFiller& filler) {
  const Window a = AnyWindow(floats.a, filler.random());
  filler.FillA([&](int, int) { return floats.a.Between(a.low, a.high); });
  filler.FillB([&](int, int) { return floats.b.Normal(); });
  filler.FillC([&](int, int) { return uint64_t{0}; });
}

}  // namespace

void FillOrdinary(int number, FloatOperands& floats, OperandFiller& filler) {
  constexpr std::array<void (*)(FloatOperands&, OperandFiller&), kOrdinaryFamilies> kFamilies = {
      FillNormal,       FillWideExponents, FillAnyBits,        FillNearlyCancellingPairs,
      FillDominatingC,  FillSubnormals,    FillPowersUnderOne, FillSignedZeros,
      FillNearOverflow, FillOneSign,       FillCancellingC,    FillWideA};
  kFamilies[static_cast<size_t>(number)](floats, filler);
}

}  // namespace gemmd
