// SPDX-License-Identifier: Apache-2.0
//
// The contract of the epilogue (kernel.h) written down a second time: one element and one rounded
// step after the other, without any code of the epilogue.
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

// D as it should be, bit for bit; all that is not an element of D holds ones bits.
std::vector<std::byte> StepwiseEpilogue(const EpilogueCase& test);

}  // namespace gemmd
