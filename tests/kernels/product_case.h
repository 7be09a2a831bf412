// SPDX-License-Identifier: Apache-2.0
//
// Products to test, in patterns and layouts, and how to run a kernel on one so that every byte read
// or written outside its place is noticed.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "tests/testing/compare.h"
#include "tests/testing/product.h"
#include "tests/testing/random_source.h"

namespace gemmd {

enum class Pattern {
  kZeros,         // Zeros of both signs.
  kOneHot,        // A has a single 1 in each matrix, B counts.
  kRamps,         // Small integers that count along rows and columns.
  kLargest,       // The largest magnitudes whose sums of products stay finite.
  kSubnormals,    // Subnormals, times numbers near 1 and subnormals.
  kSpecials,      // Small integers, some infinities and NaNs.
  kCancellation,  // Pairs along k that cancel but for a little.
  kRandom,        // Normal variates; integers uniform over all their values.
};
inline constexpr std::array<Pattern, 8> kAllPatterns = {
    Pattern::kZeros,      Pattern::kOneHot,   Pattern::kRamps,        Pattern::kLargest,
    Pattern::kSubnormals, Pattern::kSpecials, Pattern::kCancellation, Pattern::kRandom};
std::string_view NameOf(Pattern pattern);

inline constexpr Order kOrders[] = {Order::kRowMajor, Order::kColumnMajor};

// How a case differs from tight row-major matrices.
struct Layouts {
  Order a = Order::kRowMajor;
  Order b = Order::kRowMajor;
  Order c = Order::kRowMajor;
  Order d = Order::kRowMajor;
  int64_t padding = 0;  // Added to every leading dimension, in elements.
  int64_t batch = 1;
  int64_t batch_gap = 0;  // Between matrices, in elements, or bytes of packed types.
  bool broadcasts_a = false;
  bool broadcasts_b = false;
};

// A problem of the kernel's own types, D in its accumulation type.
Problem MakeProblem(const Kernel& kernel, int64_t m, int64_t n, int64_t k, const Layouts& layouts);

// A layout with padding and gaps.
MatrixLayout MakeLayout(ElementType type, Order order, int64_t rows, int64_t columns,
                        const Layouts& layouts, bool broadcasts = false);

// Fills A and B with the pattern, and C, bias and scales, if the problem has them, with random
// numbers near 1. Padding has random bits.
Product FillCase(const Problem& problem, Pattern pattern, RandomSource& random);

// The same product with A in 2:4 form. The dense A, which is tight and row major, is pruned, so
// that both are the same matrices.
Product WithSparseA(Product& dense);

// Launches the kernel on its own copies of the operands, each of which ends where memory ends, with
// a workspace and a D whose bits are all set.
absl::StatusOr<std::vector<std::byte>> RunKernel(const Kernel& kernel, const Product& product,
                                                 const Target& target);

// Whether padding, gaps and everything else that is not an element of D still has all bits set,
// except that the last byte of a packed line ends with zero bits.
testing::AssertionResult PaddingIsUntouched(const Problem& problem,
                                            const std::vector<std::byte>& d);

// How gtest prints the parameter of a test. It looks for this function in the namespace of Kernel.
void PrintTo(const Kernel& kernel, std::ostream* out);

std::string DescribeCase(const Problem& problem, Pattern pattern);

}  // namespace gemmd
