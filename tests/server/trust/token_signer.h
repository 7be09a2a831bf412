// SPDX-License-Identifier: Apache-2.0
//
// Signs tokens as an identity provider does, with keys of its own.
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

  // The public key as a set of keys has it, and with its private part where that is wanted.
  std::string PublicKey() const;

  // The algorithm as a header names it.
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
