// SPDX-License-Identifier: Apache-2.0
//
// Signed tokens that say until when and for whom they are good: JSON Web Tokens (RFC 7519), and the
// keys that sign them.
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

// The bytes of base64url without padding (RFC 4648, 5). Nothing where the text has any other
// character, a length that no bytes have, or bits beyond the last byte that are not zero: so two
// texts never stand for the same bytes.
std::optional<std::string> FromBase64Url(std::string_view text);

// The algorithms that are taken. None of them has a secret that the server would know.
enum class Signing : uint8_t { kRs256, kEs256, kEdDsa };
std::optional<Signing> SigningOf(std::string_view algorithm);  // As RFC 7518 and 8037 name it.

// The public keys of whoever signs tokens: a JSON Web Key Set (RFC 7517).
class SigningKeys {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 18;
  static constexpr size_t kMaxKeys = 64;

  // Keys of other kinds, and those that are not for signing, are left out (RFC 7517, 5). So are bad
  // ones, which left_out() lists: private or symmetric keys, RSA of less than 2048 or more than
  // 8192 bits, numbers that are no key, and the second key of one algorithm with the same kid.
  // Errors: InvalidArgument where the text is no set of keys, or no key is left.
  static absl::StatusOr<SigningKeys> Parse(std::string_view text);

  // Each names a bad key of the set and its member: "keys[1].n: got 1024 bits, want 2048 to 8192".
  const std::vector<std::string>& left_out() const { return left_out_; }

  // Whether the signature is that of the key with this id over the text. Where the token names no
  // key, the only one of its algorithm is meant.
  bool Verify(Signing algorithm, const std::optional<std::string>& key_id, std::string_view text,
              std::string_view signature) const;

 private:
  struct Key {
    std::optional<std::string> id;
    Signing algorithm;
    std::shared_ptr<evp_pkey_st> key;
  };
  friend class KeyReader;

  // Errors: InvalidArgument for a key that is to be left out.
  absl::Status Add(const std::string& field, const nlohmann::json& member);

  std::vector<Key> keys_;
  std::vector<std::string> left_out_;
};

struct WebTokenRules {
  std::string audience;  // That a token must be for.
  std::string issuer;    // Whose tokens are taken; empty takes any that a key has signed.
  // By which the clocks of both sides may differ: more than synchronised ones do, and little beside
  // the time that a token is good for.
  int64_t clock_skew_s = 60;
};

// A token that was good when it was looked at.
struct WebToken {
  std::string name;      // The subject.
  int64_t begins_s = 0;  // Since 1970, with the skew: good from here
  int64_t ends_s = 0;    // until before here.

  bool IsGoodAt(int64_t now_s) const { return begins_s <= now_s && now_s < ends_s; }
};

inline constexpr size_t kMaxWebTokenBytes = size_t{8} << 10;

// Whether a token has the form of these: three parts.
bool LooksLikeWebToken(std::string_view token);

// Takes RS256, ES256 and EdDSA alone. The subject and the time of expiry are required.
// Errors: Unauthenticated, with the reason; it repeats nothing of the token.
absl::StatusOr<WebToken> VerifyWebToken(std::string_view token, const SigningKeys& keys,
                                        const WebTokenRules& rules, int64_t now_s);

}  // namespace gemmd
