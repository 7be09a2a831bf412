// SPDX-License-Identifier: Apache-2.0
//
// The right result of a product, computed without any code of the kernels except the decoding of
// elements, and the maximum error of a correct kernel, element by element.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel.h"
#include "tests/kernels/product_case.h"

namespace gemmd {

// One value per element, matrix by matrix, row by row.
struct Reference {
  std::vector<double> want;
  std::vector<double> bound;
};

// The reference of a product computed with the arithmetic of `recipe`, and its bounds, which
// reference.cc derives. Exact recipes have bounds of 0 before the epilogue.
Reference MakeReference(const Product& product, const Recipe& recipe);

// The s32 D of an exact recipe without an epilogue: matrix by matrix, row by row.
std::vector<int32_t> MakeExactReference(const Product& product);

}  // namespace gemmd
