// SPDX-License-Identifier: Apache-2.0
//
// The values of options that are numbers, of all programs. CLI11 itself reads 010 as 8 and 0x10 as
// 16, wraps or clamps what is too large, and lets NaN pass any range.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <concepts>
#include <limits>
#include <optional>
#include <string>

#include "kernels/option/decimal.h"

namespace gemmd::option {

// "1 to 4096", "0 on"; empty for all numbers with a fraction.
template <typename Number>
std::string RangeText(Number least, Number most) {
  const auto text_of = [](Number number) {
    std::array<char, 32> text = {};
    return std::string(text.data(),
                       std::to_chars(text.data(), text.data() + text.size(), number).ptr);
  };
  using Limits = std::numeric_limits<Number>;
  if (!std::integral<Number> && most >= Limits::max()) {
    return least > Limits::lowest() ? text_of(least) + " on" : "";
  }
  return text_of(least) + " to " + text_of(most);
}

// For CLI::Option::transform, ahead of other checks: refuses all but decimal numbers from `least`
// to `most`. The help of an option gives the range, unless its description is replaced.
template <typename Number>
CLI::Validator NumberFrom(Number least, Number most) {
  const std::string range = RangeText(least, most);
  const auto refuse = [least, most, range](std::string& text) -> std::string {
    const std::optional<Number> number = ParseDecimal<Number>(text);
    if (!number || !(*number >= least && *number <= most)) {
      return "got " + (text.empty() ? "nothing" : text) + ", want a " +
             (std::integral<Number> ? "whole number" : "number") +
             (range.empty() ? "" : " from " + range);
    }
    // CLI11 would take zeros ahead of it for a sign of octal digits.
    if constexpr (std::integral<Number>) text = std::to_string(*number);
    return "";
  };
  return CLI::Validator(refuse, range);
}

}  // namespace gemmd::option
