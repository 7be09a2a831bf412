// SPDX-License-Identifier: Apache-2.0
//
// Text put together by the compiler, for names that are derived and never typed.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace gemmd {

template <size_t kCapacity>
class StaticText {
 public:
  constexpr StaticText() = default;
  template <typename... Parts>
  explicit constexpr StaticText(std::string_view first, Parts... parts) {
    Append(first);
    (Append(parts), ...);
  }

  constexpr void Append(std::string_view part) {
    for (char c : part) text_[size_++] = c;  // The compiler refuses text that does not fit.
  }
  constexpr void Append(int number) {
    if (number >= 10) Append(number / 10);
    text_[size_++] = static_cast<char>('0' + number % 10);
  }

  constexpr std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, kCapacity> text_ = {};
  size_t size_ = 0;
};

}  // namespace gemmd
