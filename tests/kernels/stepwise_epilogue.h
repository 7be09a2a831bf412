// SPDX-License-Identifier: Apache-2.0
//
// A second implementation of the epilogue's contract (kernel.h): one element and one rounded step
// after the other, without any code of the epilogue.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/epilogue.h"
#include "tests/kernels/product_case.h"

namespace gemmd {

// One product's epilogue to test: accumulators in D's order and a problem with its C, bias and
// scales.
struct EpilogueCase {
  Product product;
  std::vector<std::byte> accumulators;
  Accumulators description;
};

// The expected D, bit for bit; everything that is not an element of D has all bits set.
std::vector<std::byte> StepwiseEpilogue(const EpilogueCase& test);

}  // namespace gemmd
