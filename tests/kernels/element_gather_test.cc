// SPDX-License-Identifier: Apache-2.0
//
// Gathers of elements, against a copy element by element. What gathers on a GPU is compared with
// the same function (tests/gpu).
#include "kernels/matrix/element_gather.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/matrix/element.h"
#include "tests/kernels/gather_case.h"
#include "tests/testing/random_source.h"

namespace gemmd {
namespace {

TEST(ElementGatherTest, CopiesTheNamedElements) {
  RandomSource random;
  for (const ElementType type : kAllElementTypes) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      GatherCase one(type, random);
      GatherElements(one.gather);
      one.ExpectCopied();
      // Unit by unit, in any order, as on a GPU.
      one.PoisonCopy();
      for (int64_t unit = one.gather.units(); unit-- > 0;) GatherUnit(one.gather, unit);
      one.ExpectCopied();
    }
  }
}

TEST(ElementGatherTest, CopiesNothingOfEmptyMatrices) {
  for (const int64_t lines : {0, 1}) {
    ElementGather gather;
    gather.line_count = lines;
    gather.element_count = 1 - lines;
    GatherElements(gather);
    EXPECT_EQ(gather.units(), 0);
  }
}

}  // namespace
}  // namespace gemmd
