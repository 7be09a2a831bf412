// SPDX-License-Identifier: Apache-2.0
//
// Signed tokens with an expiry time and an audience: JSON Web Tokens (RFC 7519), and the keys that
// sign them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct evp_pkey_st;

namespace gemmd {

// Decodes base64url without padding (RFC 4648, section 5). nullopt if the text has any other
// character, an impossible length, or non-zero bits beyond the last byte: so no two texts decode to
// the same bytes.
std::optional<std::string> FromBase64Url(std::string_view text);

// The supported algorithms. None uses a secret that the server would have to know.
enum class Signing : uint8_t { kRs256, kEs256, kEdDsa };
std::optional<Signing> SigningOf(std::string_view algorithm);  // As RFC 7518 and RFC 8037 name it.

// The public keys of the issuers of tokens: a JSON Web Key Set (RFC 7517).
class SigningKeys {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 18;
  static constexpr size_t kMaxKeys = 64;

  // Skips keys of other kinds and those that are not for signing (RFC 7517, section 5). Also skips
  // bad keys, which left_out() lists: private or symmetric keys, RSA keys of less than 2048 or more
  // than 8192 bits, numbers that are not a key, and the second key of one algorithm with the same
  // kid. Errors: InvalidArgument if the text is not a set of keys, or if no key is left.
  static absl::StatusOr<SigningKeys> Parse(std::string_view text);

  // One text for each bad key of the set, naming its member: "keys[1].n: got 1024 bits, want 2048
  // to 8192".
  const std::vector<std::string>& left_out() const { return left_out_; }

  // Whether the key with this id made the signature of the text. If the token names no key, its
  // algorithm must have exactly one.
  bool Verify(Signing algorithm, const std::optional<std::string>& key_id, std::string_view text,
              std::string_view signature) const;

 private:
  struct Key {
    std::optional<std::string> id;
    Signing algorithm;
    std::shared_ptr<evp_pkey_st> key;
  };

  // Errors: InvalidArgument for a key that must be skipped.
  absl::Status Add(const std::string& field, const nlohmann::json& member);

  std::vector<Key> keys_;
  std::vector<std::string> left_out_;
};

struct WebTokenRules {
  std::string audience;  // The audience that a token must name.
  std::string issuer;    // The issuer whose tokens are accepted; empty: any, if signed by one of
                         // the keys.
  // The difference allowed between the clocks of both sides: more than synchronised clocks have,
  // and little compared to the lifetime of a token.
  int64_t clock_skew_s = 60;
};

// A token that was valid when it was examined.
struct WebToken {
  std::string name;      // The subject.
  int64_t begins_s = 0;  // Seconds since 1970, skew included: valid from here
  int64_t ends_s = 0;    // until before here.

  bool IsGoodAt(int64_t now_s) const { return begins_s <= now_s && now_s < ends_s; }
};

inline constexpr size_t kMaxWebTokenBytes = size_t{8} << 10;

// Whether a token has the form of a signed one: three parts.
bool LooksLikeWebToken(std::string_view token);

// Accepts only RS256, ES256 and EdDSA. Subject and expiry time are required. Errors:
// Unauthenticated, with the reason, which repeats nothing of the token.
absl::StatusOr<WebToken> VerifyWebToken(std::string_view token, const SigningKeys& keys,
                                        const WebTokenRules& rules, int64_t now_s);

}  // namespace gemmd
