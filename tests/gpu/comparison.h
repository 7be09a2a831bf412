// SPDX-License-Identifier: Apache-2.0
//
// Compares an output with what it should be: its elements, and everything around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "kernels/problem.h"

namespace gemmd {

// The first wrong element; or, where all elements are right, the first wrong byte around them.
struct Mismatch {
  int64_t matrix = 0;
  int64_t row = 0;
  int64_t column = 0;
  uint64_t got = 0;
  uint64_t want = 0;
  std::optional<int64_t> byte;  // From the start of D; set for a byte outside of elements.
};

struct Comparison {
  int64_t elements = 0;
  int64_t mismatches = 0;  // Includes bytes outside of elements.
  std::optional<Mismatch> first;
};

// Compares D and the guards around it, bit for bit. Both are outputs as PoisonedOutput (product.h)
// made them.
Comparison Compare(const Problem& problem, absl::Span<const std::byte> got,
                   absl::Span<const std::byte> want);

// "matrix 0, row 3, column 17: got 0x3f800000 (1), want 0x3f800001 (1.0000001)".
std::string Describe(const Mismatch& mismatch, ElementType type);

}  // namespace gemmd
