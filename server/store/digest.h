// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 hashes, and unguessable random ids.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

struct evp_md_ctx_st;

namespace gemmd {

using Sha256Digest = std::array<uint8_t, 32>;

// Incremental SHA-256 (FIPS 180-4). Not thread-safe.
class Sha256 {
 public:
  Sha256();

  void Add(absl::Span<const std::byte> bytes);

  // Call once, after the last byte.
  Sha256Digest Finish();

  static Sha256Digest Of(absl::Span<const std::byte> bytes);

 private:
  void Begin();

  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

// 128 unguessable bits: the token of a session, the handle of a tensor, the id of an upload.
struct RandomId {
  static constexpr size_t kBytes = 16;

  std::array<uint8_t, kBytes> bytes = {};

  // From the system's generator. Errors: Unavailable if it fails.
  static absl::StatusOr<RandomId> Make();

  // nullopt unless there are exactly kBytes bytes, or 32 hexadecimal digits.
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
