// SPDX-License-Identifier: Apache-2.0
#include "tests/server/trust/token_signer.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#include <array>
#include <cstdint>
#include <vector>

namespace gemmd {
namespace {

constexpr size_t kCoordinateBytes = 32;

const uint8_t* BytesOf(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

std::string TextOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

std::string ToBase64Url(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  uint32_t pending = 0;
  int bits = 0;
  for (const char c : bytes) {
    pending = pending << 8 | static_cast<uint8_t>(c);
    for (bits += 8; bits >= 6; bits -= 6) text += kDigits[pending >> (bits - 6) & 63];
  }
  if (bits > 0) text += kDigits[pending << (6 - bits) & 63];
  return text;
}

TokenSigner::TokenSigner(Kind kind, std::string key_id) : kind_(kind), key_id_(std::move(key_id)) {
  switch (kind) {
    case Kind::kRsa: key_ = EVP_RSA_gen(2048); break;
    case Kind::kP256: key_ = EVP_EC_gen("P-256"); break;
    case Kind::kEd25519: key_ = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"); break;
  }
}

TokenSigner::~TokenSigner() { EVP_PKEY_free(key_); }

std::string TokenSigner::Number(const char* name) const {
  BIGNUM* number = nullptr;
  EVP_PKEY_get_bn_param(key_, name, &number);
  std::vector<uint8_t> bytes(kind_ == Kind::kP256 ? kCoordinateBytes
                                                  : static_cast<size_t>(BN_num_bytes(number)));
  BN_bn2binpad(number, bytes.data(), static_cast<int>(bytes.size()));
  BN_free(number);
  return ToBase64Url(TextOf(bytes));
}

std::string TokenSigner::PublicKey() const {
  const std::string beginning = R"({"kid":")" + key_id_ + R"(","use":"sig",)";
  switch (kind_) {
    case Kind::kRsa:
      return beginning + R"("kty":"RSA","n":")" + Number(OSSL_PKEY_PARAM_RSA_N) + R"(","e":")" +
             Number(OSSL_PKEY_PARAM_RSA_E) + "\"}";
    case Kind::kP256:
      return beginning + R"("kty":"EC","crv":"P-256","x":")" + Number(OSSL_PKEY_PARAM_EC_PUB_X) +
             R"(","y":")" + Number(OSSL_PKEY_PARAM_EC_PUB_Y) + "\"}";
    case Kind::kEd25519: {
      std::vector<uint8_t> bytes(kCoordinateBytes);
      size_t size = bytes.size();
      EVP_PKEY_get_raw_public_key(key_, bytes.data(), &size);
      return beginning + R"("kty":"OKP","crv":"Ed25519","x":")" + ToBase64Url(TextOf(bytes)) +
             "\"}";
    }
  }
  return "";
}

std::string TokenSigner::algorithm() const {
  switch (kind_) {
    case Kind::kRsa: return "RS256";
    case Kind::kP256: return "ES256";
    case Kind::kEd25519: return "EdDSA";
  }
  return "";
}

std::string TokenSigner::Sign(std::string_view claims) const {
  return Sign(R"({"alg":")" + algorithm() + R"(","kid":")" + key_id_ + R"("})", claims);
}

std::string TokenSigner::Sign(std::string_view header, std::string_view claims) const {
  const std::string text = ToBase64Url(header) + "." + ToBase64Url(claims);
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  const EVP_MD* const digest = kind_ == Kind::kEd25519 ? nullptr : EVP_sha256();
  EVP_DigestSignInit(context, nullptr, digest, nullptr, key_);
  size_t size = 0;
  EVP_DigestSign(context, nullptr, &size, BytesOf(text), text.size());
  std::vector<uint8_t> signature(size);
  EVP_DigestSign(context, signature.data(), &size, BytesOf(text), text.size());
  signature.resize(size);
  EVP_MD_CTX_free(context);
  if (kind_ == Kind::kP256) {
    const uint8_t* der = signature.data();
    ECDSA_SIG* const pair = d2i_ECDSA_SIG(nullptr, &der, static_cast<long>(signature.size()));
    std::vector<uint8_t> numbers(2 * kCoordinateBytes);
    BN_bn2binpad(ECDSA_SIG_get0_r(pair), numbers.data(), kCoordinateBytes);
    BN_bn2binpad(ECDSA_SIG_get0_s(pair), numbers.data() + kCoordinateBytes, kCoordinateBytes);
    ECDSA_SIG_free(pair);
    signature = numbers;
  }
  return text + "." + ToBase64Url(TextOf(signature));
}

}  // namespace gemmd
