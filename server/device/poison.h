// SPDX-License-Identifier: Apache-2.0
//
// What fills memory of the host that was a matrix's, as soon as nobody uses it, where
// --poison-freed-memory is on: what reads it by mistake then finds nobody's bytes, and a test that
// looks for this one knows.
#pragma once

#include <algorithm>
#include <cstddef>

#include "absl/types/span.h"

namespace gemmd {

// As an s8 a negative number, and as a float of any type a tiny one: no result of tests' products.
inline constexpr std::byte kPoison{0xa5};

inline void Poison(absl::Span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), kPoison); }

}  // namespace gemmd
