// SPDX-License-Identifier: Apache-2.0
//
// The text of messages, numbers in text, and text that a peer chose.
//
// Concat replaces absl::StrCat, which takes no std::string_view here: Debian's Abseil has a
// string_view of its own.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"

namespace gemmd {

inline void AppendPart(std::string& text, std::string_view part) { text += part; }
inline void AppendPart(std::string& text, std::integral auto part) { text += std::to_string(part); }
// The fewest digits that identify the number: "1", "0.001", "5e-324".
inline void AppendPart(std::string& text, double part) {
  std::array<char, 32> digits = {};
  text.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), part).ptr);
}

template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::string text;
  (AppendPart(text, parts), ...);
  return text;
}

// "field: got X, want Y": the form of every refusal.
inline std::string GotWant(std::string_view field, std::string_view got, std::string_view want) {
  return Concat(field, ": got ", got, ", want ", want);
}

// Parses a plainly written number; nullopt unless all of `text` is a number of the type: digits,
// with a minus before them if the type has a sign, and with a point and an exponent if it has
// those, or inf or nan. strtoll, strtod and Abseil take more: a plus, spaces, octal and hexadecimal
// digits, and the nearest limit in place of what is too large.
template <typename Number>
std::optional<Number> ParseDecimal(std::string_view text) {
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

// The maximum length of names, ids and patterns in requests.
inline constexpr size_t kMaxNameBytes = 128;

// Max bytes of a peer's text that an error repeats.
inline constexpr size_t kShownBytes = 64;

// The beginning of UTF-8 text, at most `most` bytes, that ends where a character ends. Text that is
// not UTF-8 is cut anywhere.
std::string_view CutAtCharacter(std::string_view text, size_t most);

// A peer's text as repeated in an error: all of it, or its beginning and "...".
std::string Shown(std::string_view text);

// Errors: InvalidArgument if a name has more than kMaxNameBytes: "kernel: got 5000 bytes, want at
// most 128".
absl::Status CheckNameLength(std::string_view field, std::string_view name);

}  // namespace gemmd
