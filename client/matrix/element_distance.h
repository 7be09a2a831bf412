// SPDX-License-Identifier: Apache-2.0
//
// How far two elements of one type lie apart.
#pragma once

#include <cstdint>
#include <optional>

#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

struct ElementDistance {
  // Steps from one value of the type to the next that lead from a to b; 0 between the zeros of a
  // float type. Infinity is one step beyond the largest finite value. Absent where a or b is NaN.
  std::optional<uint64_t> ulps;
  double absolute = 0;  // |b - a|. NaN where a or b is.
  double relative = 0;  // |b - a| / |a|. NaN where a or b is, and for a of infinity.
};

// How far the elements with these patterns of bits are apart; patterns as ElementValue takes them.
ElementDistance DistanceOf(v1::ElementType type, uint64_t a, uint64_t b);

}  // namespace gemmd
