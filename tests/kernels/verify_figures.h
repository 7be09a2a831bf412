// SPDX-License-Identifier: Apache-2.0
//
// How many wrong answers checks find, and how many right ones they refuse: bits of products are
// flipped, and each product is checked.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/kernel.h"
#include "kernels/verify/recompute.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// Where a bit is flipped: in an operand before the product, in an accumulator before it becomes an
// element of D, or in D.
enum class FlipAt : uint8_t { kOperand, kAccumulator, kResult };
inline constexpr FlipAt kAllFlips[] = {FlipAt::kOperand, FlipAt::kAccumulator, FlipAt::kResult};
std::string_view NameOf(FlipAt at);

struct FlipFigures {
  int64_t flips = 0;  // Flips that change D.
  int64_t found = 0;
  int64_t large = 0;  // Flips that change an element by more than 1 % of the root mean square of D,
  int64_t large_found = 0;
  int64_t above = 0;  // or by more than the documented limit of the check.
  int64_t above_found = 0;
  // The smallest change that was found, of the element that changed most: as a number, and in units
  // in the last place of D's type at the right value. Infinity if none was found.
  double least_found = std::numeric_limits<double>::infinity();
  double least_found_ulp = std::numeric_limits<double>::infinity();
};

// The distance of a finite value, rounded to the type, to the next larger magnitude, or at the end
// of the type's range to the next smaller one. 1 for integers.
double UlpAt(ElementType type, double value);

struct FlippedShape {
  int64_t m = 40;
  int64_t n = 48;
  int64_t k = 64;
  bool is_sparse = false;  // A is in 2:4 form.
};

verify::CheckedProduct ProductToCheck(const Kernel& kernel, const Target& target,
                                      const Product& product, absl::Span<const std::byte> d);

// A product of random numbers.
Product RandomProduct(const Kernel& kernel, const FlippedShape& shape, RandomSource& random);

// Flips this many bits of products of random numbers, one at a time, and checks each with
// CheckSums. In an operand in 2:4 form, only values are flipped, because changed indices might be
// invalid. `d` is the type of D.
FlipFigures CountFoundBySums(const Kernel& kernel, ElementType d, FlipAt at, int64_t flips,
                             const FlippedShape& shape, RandomSource& random);

// Flips of one bit of D, and how many CheckSample finds at a rate.
struct SampleFigures {
  int64_t flips = 0;
  int64_t found = 0;
  double predicted = 0;  // The probability of finding one.
};
SampleFigures CountFoundBySample(const Kernel& kernel, int64_t flips, double rate,
                                 RandomSource& random);
// Whether as many were found as the formula predicts: if the formula is right, this fails with a
// probability below 1e-9 (the Chernoff bounds of both tails).
bool IsAsPredicted(const SampleFigures& figures);

// Operands as callers may choose them to have a right product refused: any bit patterns, or only
// the smallest, the largest and those next to 1, with such factors.
enum class Operands : uint8_t { kUsual, kChosen };

// Right products of random shape, pattern and epilogue, some with a sparse A, that either check
// does not pass. Products with infinities need not pass, but must not be called wrong.
struct CleanFigures {
  int64_t products = 0;
  int64_t sparse = 0;  // Those with a sparse A.
  int64_t refused = 0;
  int64_t suspicions = 0;
  int64_t not_verified = 0;
};
CleanFigures CountRefused(int64_t products, Operands operands, RandomSource& random);

// A kernel of the catalogue by its name.
const Kernel& KernelNamed(std::string_view name);
Target TargetOf(const Kernel& kernel);

}  // namespace gemmd
