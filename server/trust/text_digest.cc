// SPDX-License-Identifier: Apache-2.0
#include "server/trust/text_digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <memory>
#include <new>

#include "absl/strings/ascii.h"

namespace gemmd {
namespace {

struct FreeDigest {
  void operator()(EVP_MD* digest) const { EVP_MD_free(digest); }
};

// To look the algorithm up takes longer than to digest a token, so it is done once.
const EVP_MD* Algorithm() {
  static const std::unique_ptr<EVP_MD, FreeDigest> sha256(EVP_MD_fetch(nullptr, "SHA256", nullptr));
  return sha256.get();
}

int DigitOf(char c) {
  if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return -1;
  return absl::ascii_isdigit(static_cast<unsigned char>(c))
             ? c - '0'
             : absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10;
}

}  // namespace

TextDigest TextDigest::Of(std::string_view text) {
  TextDigest digest;
  const EVP_MD* const algorithm = Algorithm();
  if (algorithm == nullptr ||
      EVP_Digest(text.data(), text.size(), digest.bytes.data(), nullptr, algorithm, nullptr) != 1) {
    throw std::bad_alloc();
  }
  return digest;
}

std::optional<TextDigest> TextDigest::FromHex(std::string_view digits) {
  TextDigest digest;
  if (digits.size() != 2 * digest.bytes.size()) return std::nullopt;
  for (size_t i = 0; i < digest.bytes.size(); ++i) {
    const int high = DigitOf(digits[2 * i]);
    const int low = DigitOf(digits[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return digest;
}

bool TextDigest::Equals(const TextDigest& other) const {
  return CRYPTO_memcmp(bytes.data(), other.bytes.data(), bytes.size()) == 0;
}

}  // namespace gemmd
