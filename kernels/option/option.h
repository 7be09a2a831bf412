// SPDX-License-Identifier: Apache-2.0
//
// Numeric options of all programs, and the error for missing values. CLI11 itself reads 010 as 8
// and 0x10 as 16, wraps or clamps numbers that are too large, and accepts NaN in any range.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <concepts>
#include <limits>
#include <optional>
#include <string>

#include "kernels/matrix/text.h"

namespace gemmd::option {

// "1 to 4096", "0 on"; empty for all numbers with a fraction.
template <typename Number>
std::string RangeText(Number min, Number max) {
  const auto text_of = [](Number number) {
    std::array<char, 32> text = {};
    return std::string(text.data(),
                       std::to_chars(text.data(), text.data() + text.size(), number).ptr);
  };
  using Limits = std::numeric_limits<Number>;
  if (!std::integral<Number> && max >= Limits::max()) {
    return min > Limits::lowest() ? text_of(min) + " on" : "";
  }
  return text_of(min) + " to " + text_of(max);
}

// For CLI::Option::transform, ahead of other checks: refuses all but decimal numbers from `min`
// to `max`. The help of an option gives the range, unless its description is replaced.
template <typename Number>
CLI::Validator NumberFrom(Number min, Number max) {
  const std::string range = RangeText(min, max);
  const auto refuse = [min, max, range](std::string& text) -> std::string {
    const std::optional<Number> number = ParseDecimal<Number>(text);
    if (!number || !(*number >= min && *number <= max)) {
      return "got " + (text.empty() ? "nothing" : text) + ", want a " +
             (std::integral<Number> ? "whole number" : "number") +
             (range.empty() ? "" : " from " + range);
    }
    // CLI11 would read leading zeros as octal.
    if constexpr (std::integral<Number>) text = std::to_string(*number);
    return "";
  };
  return CLI::Validator(refuse, range);
}

// The message for an option without a value, or with too many, in the form of all other refusals:
// "--rate: got nothing, want R,...", "--type: got 2 values, want 1"; CLI11's words for all else.
// CLI11 says "--max-sessions: 1 required COUNT:1 to 4096 missing".
inline std::string TextOf(const CLI::Error& error) {
  const std::string text = error.what();
  const size_t end = text.find(": ");
  if (error.get_name() != "ArgumentMismatch" || end == text.npos) return text;
  const std::string name = text.substr(0, end);
  const std::string rest = text.substr(end);
  const std::string missing = " missing";
  // A type follows, such as COUNT or COUNT[:DURATION], and after a colon its range.
  const std::string one = ": 1 required ";
  if (rest.starts_with(one) && rest.ends_with(missing)) {
    const std::string type = rest.substr(one.size(), rest.size() - one.size() - missing.size());
    const size_t optional_part = type.find("[:");
    const size_t range = type.find(':', optional_part == type.npos ? 0 : optional_part + 2);
    return name + ": got nothing, want " + type.substr(0, range);
  }
  const std::string at_most = ": At Most 1 required but received ";
  if (rest.starts_with(at_most)) {
    return name + ": got " + rest.substr(at_most.size()) + " values, want 1";
  }
  return text;
}

// For CLI::App::failure_message.
inline std::string FailureText(const CLI::App* app, const CLI::Error& error) {
  std::string text = CLI::FailureMessage::simple(app, error);
  return text.replace(0, std::string(error.what()).size(), TextOf(error));
}

}  // namespace gemmd::option
