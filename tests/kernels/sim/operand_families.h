// SPDX-License-Identifier: Apache-2.0
//
// Families of operands that reach cases which ordinary numbers do not: specials, subnormals,
// cancellation, windows of exponents, the limits of rounding.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "kernels/mma/chip.h"
#include "kernels/mma/instruction.h"
#include "kernels/problem.h"
#include "tests/testing/random_source.h"

namespace gemmd {

enum class Family {
  kAnyBits,       // R1: every bit pattern, NaN and infinities included.
  kFiniteBits,    // R2: every finite pattern.
  kNormal,        // R3: normal variates.
  kWindow,        // R4: exponents in a window of 1 to 60 binades anywhere in the range.
  kCancellation,  // R5: half of the products are the negatives of the others; small ones survive.
  kSumCancels,    // R6: the second instruction subtracts nearly all of what the first one summed.
  kSubnormals,    // R7: subnormals and zeros of both signs.
  kEdges,         // R8: powers of two and their neighbours.
  kLongChain,     // R9: as R3; meant for chains of many instructions.
  kOneHot,        // R10: one element of each row is not zero.
  kWidest,        // R11: one sign, one exponent, full significands: the longest carries.
};
inline constexpr std::array<Family, 11> kAllFamilies = {
    Family::kAnyBits,      Family::kFiniteBits, Family::kNormal,     Family::kWindow,
    Family::kCancellation, Family::kSumCancels, Family::kSubnormals, Family::kEdges,
    Family::kLongChain,    Family::kOneHot,     Family::kWidest};
std::string_view NameOf(Family family);

// A product of an instruction with operands of a family: tight, A row major (or sparse, in its
// portable form), B column major. Integers and f64 use the family with the closest meaning.
struct FamilyCase {
  Problem problem;
  std::vector<std::byte> a;
  std::vector<std::byte> b;
};

FamilyCase MakeCase(const mma::Instruction& instruction, Family family, int64_t m, int64_t n,
                    int64_t k, RandomSource& random);

}  // namespace gemmd
