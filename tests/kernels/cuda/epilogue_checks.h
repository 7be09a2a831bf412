// SPDX-License-Identifier: Apache-2.0
//
// Checks that an epilogue of tiles leaves the bytes that ApplyEpilogue leaves. A run on the host
// and one on a GPU share the cases.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/kernels/product_case.h"
#include "tests/testing/random_source.h"

namespace gemmd {

// A batch of accumulators, row major without gaps, and what is to become of them.
struct TileEpilogueCase {
  Product product;  // Only its C, bias and scales count.
  ElementType type = ElementType::kF32;
  std::vector<std::byte> accumulators;
};

// D between its guards; all bytes were ones bits before.
using EpilogueRunner = std::function<std::vector<std::byte>(const TileEpilogueCase&)>;

// Each fails a test of GoogleTest where one byte differs.
void CheckEveryTypeOfCAndD(const EpilogueRunner& run, RandomSource& random);
void CheckEveryOption(const EpilogueRunner& run, RandomSource& random);
void CheckEveryActivation(const EpilogueRunner& run, RandomSource& random);
void CheckOddShapes(const EpilogueRunner& run, RandomSource& random);
void CheckPlain(const EpilogueRunner& run, RandomSource& random);
void CheckWithoutProduct(const EpilogueRunner& run, RandomSource& random);

}  // namespace gemmd
