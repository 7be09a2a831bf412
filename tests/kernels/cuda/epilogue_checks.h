// SPDX-License-Identifier: Apache-2.0
//
// Checks that an epilogue of tiles produces the same bytes as ApplyEpilogue. A run on the host and
// one on a GPU share the cases.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/kernels/product_case.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// A batch of accumulators, row major without gaps, and the epilogue to apply to them.
struct TileEpilogueCase {
  Product product;  // Only its C, bias and scales matter.
  ElementType type = ElementType::kF32;
  std::vector<std::byte> accumulators;
};

// Returns D between its guards; all bytes had all bits set before.
using EpilogueRunner = std::function<std::vector<std::byte>(const TileEpilogueCase&)>;

// Each fails a GoogleTest test at the first different byte.
void CheckEveryTypeOfCAndD(const EpilogueRunner& run, RandomSource& random);
void CheckEveryOption(const EpilogueRunner& run, RandomSource& random);
void CheckEveryActivation(const EpilogueRunner& run, RandomSource& random);
void CheckOddShapes(const EpilogueRunner& run, RandomSource& random);
void CheckPlain(const EpilogueRunner& run, RandomSource& random);
void CheckWithoutProduct(const EpilogueRunner& run, RandomSource& random);

}  // namespace gemmd
