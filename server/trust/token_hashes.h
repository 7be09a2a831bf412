// SPDX-License-Identifier: Apache-2.0
//
// Tokens that never change, known by their hashes alone.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "server/trust/text_digest.h"

namespace gemmd {

// One identity may have several, so that a token can be replaced without a gap.
class TokenHashes {
 public:
  static constexpr size_t kMostBytes = size_t{1} << 20;

  // A line for each token: "IDENTITY: SHA-256 in hexadecimal digits". Empty lines, and those that
  // begin with #, are left out.
  // Errors: InvalidArgument, which names the line and repeats no hash.
  static absl::StatusOr<TokenHashes> Parse(std::string_view text);

  // Whose token has this digest; nothing where nobody's has.
  std::optional<std::string> Find(const TextDigest& digest) const;

 private:
  struct Known {
    TextDigest digest;
    std::string name;
  };
  std::unordered_multimap<uint64_t, Known> by_key_;
};

}  // namespace gemmd
