// SPDX-License-Identifier: Apache-2.0
//
// What a product should be, computed without any code of the kernels but the decoding of elements,
// and how far a correct kernel may be from it, element by element.
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

// The reference of a product computed with the arithmetic of `recipe`, and its bounds; see
// reference.cc for their derivation. Exact recipes have bounds of 0 before the epilogue.
Reference MakeReference(const Product& product, const Recipe& recipe);

// D of an exact recipe with nothing but the product in an s32 D: matrix by matrix, row by row.
std::vector<int32_t> MakeExactReference(const Product& product);

}  // namespace gemmd
