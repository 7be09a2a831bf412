// SPDX-License-Identifier: Apache-2.0
//
// Numbers as people write them. strtoll, strtod and Abseil take more: a plus, spaces, octal and
// hexadecimal digits, and the nearest limit in place of what is too large.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace gemmd::option {

// Null unless all of `text` is a number that the type has: digits, with a minus before them where
// the type has a sign, and with a point and an exponent where it has those, or inf or nan.
template <typename Number>
std::optional<Number> ParseDecimal(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

}  // namespace gemmd::option
