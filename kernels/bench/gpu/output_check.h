// SPDX-License-Identifier: Apache-2.0
//
// Checks that D equals the simulator's, bit for bit: all of it for a small product, otherwise the
// crossings of random rows and columns. Also checks that every element was written, and nothing
// between the lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/bench/operands.h"
#include "kernels/kernel.h"

namespace gemmd::bench {

struct OutputCheck {
  int64_t elements = 0;  // Elements of D.
  int64_t compared = 0;  // Elements compared with the simulator.
  int64_t mismatches =
      0;              // Elements that differ or were not written; bytes between lines that were.
  std::string first;  // Describes the first wrong one.
};

// The byte with which to fill D before the kernel runs. No sum of random operands has this pattern.
uint8_t PoisonOf(ElementType type);

// Max multiplications of a comparison.
inline constexpr int64_t kCheckBudget = int64_t{1} << 26;

// `operands` and `d` are the host's copies as `problem` says; a bias has one number per column.
// Errors: NotFound if the simulator lacks the instruction; the simulator's own.
absl::StatusOr<OutputCheck> CheckOutput(const Kernel& kernel, const Target& target,
                                        const Problem& problem, const Operands& operands,
                                        const std::vector<std::byte>& d,
                                        int64_t budget = kCheckBudget);

// All of `extent` places, or `count` of them: the first, the last, and one of each stretch of the
// rest, drawn at random. Ascending.
std::vector<int64_t> DrawPlaces(int64_t extent, int64_t count, uint64_t seed);

}  // namespace gemmd::bench
