// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 of a short secret, by which it is known without being kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace gemmd {

struct TextDigest {
  std::array<uint8_t, 32> bytes = {};

  static TextDigest Of(std::string_view text);

  // Nothing where there are not exactly 64 hexadecimal digits.
  static std::optional<TextDigest> FromHex(std::string_view digits);

  // Takes the same time wherever the two differ.
  bool Equals(const TextDigest& other) const;

  // Eight bytes of it, to find it by.
  uint64_t Key() const {
    uint64_t key = 0;
    std::memcpy(&key, bytes.data(), sizeof(key));
    return key;
  }
};

}  // namespace gemmd
