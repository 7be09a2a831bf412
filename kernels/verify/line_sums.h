// SPDX-License-Identifier: Apache-2.0
//
// A matrix times a vector, in f64 or in integers, for the sums of checksum.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/abort.h"
#include "kernels/problem.h"

namespace gemmd::verify {

// For each row i of a dense matrix x: sums[i] = sum of x_ij factors_j and squares[i] = sum of
// x_ij^2 weights_j. Infinities and NaNs go through. Where the flag is set, they are anything.
struct LineSums {
  std::vector<double> sums;
  std::vector<double> squares;
};
LineSums SumsOf(const MatrixLayout& layout, const std::byte* matrix,
                const std::vector<double>& factors, const std::vector<double>& weights,
                AbortFlag abort);

std::vector<double> SquaresOf(const std::vector<double>& values);

// A number modulo 2^32 and modulo a prime.
inline constexpr uint64_t kFieldPrime = (uint64_t{1} << 61) - 1;
struct IntegerFactor {
  uint32_t word = 0;
  uint64_t field = 0;
};

// The same sums of integers or bits, exactly.
std::vector<IntegerFactor> IntegerSums(const MatrixLayout& layout, const std::byte* matrix,
                                       const std::vector<IntegerFactor>& factors, AbortFlag abort);

// The greatest magnitude of an integer type.
double MagnitudeOf(ElementType type);

}  // namespace gemmd::verify
