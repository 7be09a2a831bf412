// SPDX-License-Identifier: Apache-2.0
//
// An element of a product with factors of blocks, step by step as BlockScaling::kParts says
// (kernels/kernel.h): what the rows of the CPU are held against.
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "kernels/problem.h"

namespace gemmd::verify {

// The factors of one row of A, or column of B, along k.
struct FactorLine {
  const BlockScale* blocks = nullptr;  // Null: none.
  const std::byte* factors = nullptr;
};

// The accumulator of one row of A and one column of B.
float SumOfParts(absl::Span<const double> a, absl::Span<const double> b, const FactorLine& of_a,
                 const FactorLine& of_b);

}  // namespace gemmd::verify
