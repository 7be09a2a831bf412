// SPDX-License-Identifier: Apache-2.0
//
// Signed tokens that say until when and for whom they are good: JSON Web Tokens (RFC 7519).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/trust/signing_keys.h"

namespace gemmd {

struct WebTokenRules {
  std::string audience;       // That a token must be for.
  std::string issuer;         // Whose tokens are taken; empty takes any that a key has signed.
  int64_t clock_skew_s = 60;  // By which the clocks of both sides may differ.
};
inline constexpr int64_t kMostClockSkewS = 300;

// A token that was good when it was looked at.
struct WebToken {
  std::string name;      // The subject.
  int64_t begins_s = 0;  // Since 1970, with the skew: good from here
  int64_t ends_s = 0;    // until before here.

  bool IsGoodAt(int64_t now_s) const { return begins_s <= now_s && now_s < ends_s; }
};

inline constexpr size_t kMostWebTokenBytes = size_t{8} << 10;

// Whether a token has the form of these: three parts.
bool LooksLikeWebToken(std::string_view token);

// Takes RS256, ES256 and EdDSA alone. The subject and the time of expiry are required.
// Errors: Unauthenticated, with the reason; it repeats nothing of the token.
absl::StatusOr<WebToken> VerifyWebToken(std::string_view token, const SigningKeys& keys,
                                        const WebTokenRules& rules, int64_t now_s);

}  // namespace gemmd
