// SPDX-License-Identifier: Apache-2.0
//
// Signs tokens as an identity provider does, with its own keys.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct evp_pkey_st;

namespace gemmd {

std::string ToBase64Url(std::string_view bytes);

class TokenSigner {
 public:
  enum class Kind { kRsa, kP256, kEd25519 };
  TokenSigner(Kind kind, std::string key_id);
  ~TokenSigner();

  // The public key as a member of a set of keys; with its private part if requested.
  std::string PublicKey() const;

  // The algorithm's name in headers.
  std::string algorithm() const;

  // Both are JSON.
  std::string Sign(std::string_view header, std::string_view claims) const;
  // With the header that the key needs.
  std::string Sign(std::string_view claims) const;

 private:
  std::string Number(const char* name) const;

  const Kind kind_;
  const std::string key_id_;
  evp_pkey_st* key_;
};

}  // namespace gemmd
