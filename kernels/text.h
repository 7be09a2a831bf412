// SPDX-License-Identifier: Apache-2.0
//
// Joins text and numbers into messages. It replaces absl::StrCat, which takes no std::string_view
// here: Debian's Abseil has a string_view of its own.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace gemmd {

inline void AppendPart(std::string& text, std::string_view part) { text += part; }
inline void AppendPart(std::string& text, std::integral auto part) { text += std::to_string(part); }
// The fewest digits that say which number it is: "1", "0.001", "5e-324".
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

}  // namespace gemmd
