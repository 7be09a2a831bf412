// SPDX-License-Identifier: Apache-2.0
//
// Whether D is, bit for bit, what the simulator computes: all of it where the product is small,
// otherwise the elements where some rows and columns cross, drawn from everywhere. And whether
// every element was written, and nothing between the lines.
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
  int64_t elements = 0;  // How many D has.
  int64_t compared = 0;  // With the simulator.
  int64_t mismatches =
      0;              // Elements that differ or were not written; bytes between lines that were.
  std::string first;  // What is wrong with the first of them.
};

// The byte that D is to be full of before the kernel runs. No sum of random operands looks so.
uint8_t PoisonOf(ElementType type);

// Work that a comparison may take: multiplications.
inline constexpr int64_t kCheckBudget = int64_t{1} << 26;

// `operands` and `d` are the host's copies as `problem` says; a bias is one number for each column.
// Errors: NotFound where the simulator lacks the instruction; its own.
absl::StatusOr<OutputCheck> CheckOutput(const Kernel& kernel, const Target& target,
                                        const Problem& problem, const Operands& operands,
                                        const std::vector<std::byte>& d,
                                        int64_t budget = kCheckBudget);

// All of `extent` places, or `count` of them: the first, the last, and one of each stretch of the
// rest, drawn at random. Ascending.
std::vector<int64_t> DrawPlaces(int64_t extent, int64_t count, uint64_t seed);

}  // namespace gemmd::bench
