// SPDX-License-Identifier: Apache-2.0
//
// The check of a CPU row's result against a reference in f64.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/kernel.h"

namespace gemmd::bench {

// The matrices of one product, as the problem says.
struct ProductBytes {
  const std::byte* a;
  const std::byte* b;
  const std::byte* d;
};

// "ok" where a thousand elements of D, drawn at random, are as they should be: exact, or within the
// bound (2 k + 4) u sum |a b| of the reference, u being the accumulation type's unit roundoff.
// Otherwise names the first that is not.
std::string CheckElements(const Kernel& kernel, const Problem& problem, const ProductBytes& bytes);

}  // namespace gemmd::bench
