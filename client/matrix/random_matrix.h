// SPDX-License-Identifier: Apache-2.0
//
// Random operands for trying out and timing: standard normal values in float types, uniform over
// the whole range in integer types and bits. Zeros would flatter every clock and every cache.
#pragma once

#include <cstdint>
#include <string>

#include "gemmd/v1/tensors.pb.h"

namespace gemmd {

// `count` lines of `line_length` packed elements. The same seed gives the same bytes everywhere.
std::string RandomLines(v1::ElementType type, int64_t line_length, int64_t count, uint64_t seed);

}  // namespace gemmd
