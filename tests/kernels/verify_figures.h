// SPDX-License-Identifier: Apache-2.0
//
// How many wrong answers checks find, and how many right ones they refuse: faults are put into
// products, and each product is checked.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "kernels/kernel.h"
#include "kernels/verify/recompute.h"
#include "tests/kernels/faults.h"
#include "tests/kernels/product_case.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// A product to put faults into.
struct FaultyCase {
  std::string_view kernel;
  ElementType d = ElementType::kF32;
  int64_t m = 40;
  int64_t n = 48;
  int64_t k = 64;
  bool is_sparse = false;     // A is in 2:4 form.
  bool has_epilogue = false;  // Alpha, C and a bias.
  Activation activation = Activation::kNone;
};

// What one check finds.
struct Found {
  int64_t faults = 0;  // Faults that change D and that the check covers.
  int64_t found = 0;
  int64_t above = 0;  // Those that change an element by more than rounding explains.
  int64_t above_found = 0;
};

struct FaultFigures {
  // CheckSums; no faults if it does not check such products. Above rounding: by more than the
  // documented limit of the check.
  Found sums;
  // CheckSample of all elements. Above rounding: any change if the check compares bits, otherwise a
  // change by more than twice the error that a correct kernel may have.
  Found whole;
  Found part;  // CheckSample at kPartRate.
  // Of `sums`: those that change an element by more than 1 % of the root mean square of D.
  int64_t large = 0;
  int64_t large_found = 0;
  // The smallest change that `sums` found, of the element that changed most: as a number, and in
  // units in the last place of D's type at the right value. Infinity if none was found.
  double least_found = std::numeric_limits<double>::infinity();
  double least_found_ulp = std::numeric_limits<double>::infinity();
};
inline constexpr double kPartRate = 1.0 / 64;

// The distance of a finite value, rounded to the type, to the next larger magnitude, or at the end
// of the type's range to the next smaller one. 1 for integers.
double UlpAt(ElementType type, double value);

verify::CheckedProduct ProductToCheck(const Kernel& kernel, const Target& target,
                                      const Product& product, absl::Span<const std::byte> d);

// A product of random numbers.
Product RandomProduct(const FaultyCase& of, RandomSource& random);

// Whether there are such faults: no store of D has a register for the whole product.
constexpr bool IsPossible(FaultAt at, FaultKind kind) {
  return at != FaultAt::kResult || kind != FaultKind::kStuckBit;
}

// Puts this many faults into products of random numbers, one at a time, and checks each product. In
// an operand in 2:4 form, only values change, because changed indices might be invalid.
FaultFigures CountFound(const FaultyCase& of, FaultAt at, FaultKind kind, int64_t faults,
                        RandomSource& random);

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
// The host, or a chip that has the kernel's instruction.
Target TargetOf(const Kernel& kernel);

}  // namespace gemmd
