// SPDX-License-Identifier: Apache-2.0
//
// 128 bits that nobody can guess: the token of a session, the handle of a tensor, the id of an
// upload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace gemmd {

struct RandomId {
  static constexpr size_t kBytes = 16;

  std::array<uint8_t, kBytes> bytes = {};

  // From the system's generator. Errors: Unavailable where it gives none.
  static absl::StatusOr<RandomId> Make();

  // Nothing where there are not exactly kBytes bytes, or 32 hexadecimal digits.
  static std::optional<RandomId> FromBytes(std::string_view bytes);
  static std::optional<RandomId> FromHex(std::string_view digits);

  std::string ToBytes() const;
  std::string ToHex() const;

  friend bool operator==(const RandomId&, const RandomId&) = default;
  template <typename Hash>
  friend Hash AbslHashValue(Hash hash, const RandomId& id) {
    return Hash::combine(std::move(hash), id.bytes);
  }
};

}  // namespace gemmd
