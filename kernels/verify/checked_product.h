// SPDX-License-Identifier: Apache-2.0
//
// A product that was computed and is to be checked, and what a check comes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string_view>

#include "absl/types/span.h"
#include "kernels/abort.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"

namespace gemmd::verify {

// Where random numbers come from. Whoever computes D must not know them beforehand: seed it from
// the system's randomness.
using Draw = std::mt19937_64;

// Everything is borrowed. Matrices lie as the problem's layouts say; spans of operands that the
// problem does not read are empty.
struct CheckedProduct {
  const Kernel& kernel;  // That computed D,
  Target target;         // on this device.
  const Problem& problem;
  absl::Span<const std::byte> a;
  absl::Span<const std::byte> b;
  absl::Span<const std::byte> c;
  absl::Span<const std::byte> bias;
  absl::Span<const float> a_scale;
  absl::Span<const float> b_scale;
  absl::Span<const std::byte> d;
  AbortFlag abort = nullptr;                   // Once it is set, the check ends with Cancelled.
  absl::Span<const std::byte> a_factors = {};  // Those of blocks.
  absl::Span<const std::byte> b_factors = {};
};

// An element of D that is wrong.
struct WrongElement {
  int64_t batch = 0;
  int64_t row = 0;
  int64_t column = 0;
  uint64_t got_bits = 0;
  uint64_t want_bits = 0;  // Where a bound decides, the nearest that is right.
};

enum class CheckEnd : uint8_t { kPassed, kWrong, kNotVerified };

struct CheckResult {
  CheckEnd end = CheckEnd::kPassed;
  std::string_view reason;            // Why it is kNotVerified: "nonfinite", "undecided".
  int64_t elements_checked = 0;       // Elements that were computed again or compared.
  int64_t wrong_elements = 0;         // Among those.
  std::optional<WrongElement> wrong;  // The first of them.
  double miss_probability = 0;        // That one wrong element, wherever it is, is not seen.
  double cost = 0;                    // Operations of the check over those of the product.
  double least_error = 0;  // For sums: miss_probability holds for errors above this. 0: for all.
  int64_t suspicions = 0;  // For sums: rows and columns that were computed again.
};

}  // namespace gemmd::verify
