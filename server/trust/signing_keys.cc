// SPDX-License-Identifier: Apache-2.0
#include "server/trust/signing_keys.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/trust/base64url.h"
#include "server/trust/json_text.h"

namespace gemmd {
namespace {

using nlohmann::json;

constexpr size_t kCoordinateBytes =
    32;  // A coordinate of P-256 has as many bytes as a key of Ed25519.
constexpr int kLeastRsaBits = 2048;
constexpr int kMostRsaBits = 8192;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* value) const {
    Free(value);
  }
};
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;
using Builder = std::unique_ptr<OSSL_PARAM_BLD, Freed<OSSL_PARAM_BLD_free>>;
using Parameters = std::unique_ptr<OSSL_PARAM, Freed<OSSL_PARAM_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Freed<EVP_PKEY_CTX_free>>;
using DigestContext = std::unique_ptr<EVP_MD_CTX, Freed<EVP_MD_CTX_free>>;
using EcSignature = std::unique_ptr<ECDSA_SIG, Freed<ECDSA_SIG_free>>;

const uint8_t* BytesOf(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

Number NumberOf(std::string_view bytes) {
  return Number(BN_bin2bn(BytesOf(bytes), static_cast<int>(bytes.size()), nullptr));
}

EVP_PKEY* KeyOf(const char* kind, OSSL_PARAM_BLD* builder) {
  const Parameters parameters(OSSL_PARAM_BLD_to_param(builder));
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, kind, nullptr));
  EVP_PKEY* key = nullptr;
  if (parameters == nullptr || context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, parameters.get()) != 1) {
    return nullptr;
  }
  return key;
}

// With an exponent of 1 everybody could sign.
bool IsExponent(const BIGNUM* number) {
  constexpr int kMostBits = 32;
  return number != nullptr && BN_is_odd(number) == 1 && BN_is_one(number) == 0 &&
         BN_num_bits(number) <= kMostBits;
}

EVP_PKEY* RsaKey(const BIGNUM& modulus, const BIGNUM& exponent) {
  const Builder builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, &modulus) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, &exponent) != 1) {
    return nullptr;
  }
  return KeyOf("RSA", builder.get());
}

EVP_PKEY* P256Key(std::string_view x, std::string_view y) {
  constexpr char kUncompressed = 4;  // SEC 1, 2.3.3.
  const std::string point =
      absl::StrCat(std::string(1, kUncompressed), std::string(x), std::string(y));
  const Builder builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr ||
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) !=
          1 ||
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                       point.size()) != 1) {
    return nullptr;
  }
  return KeyOf("EC", builder.get());
}

// A signature of RFC 7518, 3.4, as OpenSSL takes it; empty where it is none.
std::string DerOf(std::string_view signature) {
  if (signature.size() != 2 * kCoordinateBytes) return "";
  Number r = NumberOf(signature.substr(0, kCoordinateBytes));
  Number s = NumberOf(signature.substr(kCoordinateBytes));
  const EcSignature pair(ECDSA_SIG_new());
  if (r == nullptr || s == nullptr || pair == nullptr ||
      ECDSA_SIG_set0(pair.get(), r.get(), s.get()) != 1) {
    return "";
  }
  (void)r.release();  // The pair owns both now.
  (void)s.release();
  uint8_t* der = nullptr;
  const int bytes = i2d_ECDSA_SIG(pair.get(), &der);
  if (bytes <= 0) return "";
  std::string text(reinterpret_cast<const char*>(der), static_cast<size_t>(bytes));
  OPENSSL_free(der);
  return text;
}

bool Verifies(EVP_PKEY* key, Signing algorithm, std::string_view text, std::string_view signature) {
  const DigestContext context(EVP_MD_CTX_new());
  const EVP_MD* const digest = algorithm == Signing::kEdDsa ? nullptr : EVP_sha256();
  return context != nullptr &&
         EVP_DigestVerifyInit(context.get(), nullptr, digest, nullptr, key) == 1 &&
         EVP_DigestVerify(context.get(), BytesOf(signature), signature.size(), BytesOf(text),
                          text.size()) == 1;
}

absl::Status BadKey(const std::string& field, const std::string& got, const std::string& want) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": got ", got, ", want ", want));
}

absl::Status BadSet(const std::string& got, const std::string& want) {
  return BadKey("jwt-keys: keys", got, want);
}

}  // namespace

std::optional<Signing> SigningOf(std::string_view algorithm) {
  if (algorithm == "RS256") return Signing::kRs256;
  if (algorithm == "ES256") return Signing::kEs256;
  if (algorithm == "EdDSA") return Signing::kEdDsa;
  return std::nullopt;
}

void SigningKeys::FreeKey::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

// One key of a set.
class KeyReader {
 public:
  KeyReader(std::string field, const json& key) : field_(std::move(field)), key_(key) {}

  // Nothing where the key is not for what it is looked for here.
  absl::StatusOr<std::optional<SigningKeys::Key>> Read() const {
    if (!key_.is_object()) return BadKey(field_, "no object", "a key");
    // Whoever can read the file of such a key can sign.
    if (Text("kty") == "oct" || key_.contains("d") || key_.contains("k")) {
      return BadKey(field_, "a private or symmetric key", "a public one");
    }
    const std::optional<Signing> algorithm = Algorithm();
    if (!algorithm || (key_.contains("use") && Text("use") != "sig")) return std::nullopt;
    if (key_.contains("alg") && SigningOf(Text("alg")) != algorithm) return std::nullopt;
    SigningKeys::Key key = {.id = std::nullopt, .algorithm = *algorithm, .key = nullptr};
    if (key_.contains("kid")) {
      if (!key_["kid"].is_string()) return BadKey(field_ + ".kid", "no text", "text");
      key.id = Text("kid");
    }
    ASSIGN_OR_RETURN(EVP_PKEY* const made, Make(*algorithm));
    key.key.reset(made);
    return key;
  }

 private:
  std::string Text(const char* name) const {
    const auto member = key_.find(name);
    return member != key_.end() && member->is_string() ? member->get<std::string>() : "";
  }

  std::optional<Signing> Algorithm() const {
    if (Text("kty") == "RSA") return Signing::kRs256;
    if (Text("kty") == "EC" && Text("crv") == "P-256") return Signing::kEs256;
    if (Text("kty") == "OKP" && Text("crv") == "Ed25519") return Signing::kEdDsa;
    return std::nullopt;
  }

  absl::StatusOr<std::string> Bytes(const char* name) const {
    const std::optional<std::string> bytes = FromBase64Url(Text(name));
    if (bytes && !bytes->empty()) return *bytes;
    return BadKey(absl::StrCat(field_, ".", name), "no base64url", "base64url without padding");
  }

  absl::StatusOr<EVP_PKEY*> Make(Signing algorithm) const {
    EVP_PKEY* key = nullptr;
    switch (algorithm) {
      case Signing::kRs256: {
        ASSIGN_OR_RETURN(const std::string n, Bytes("n"));
        ASSIGN_OR_RETURN(const std::string e, Bytes("e"));
        const Number modulus = NumberOf(n);
        const Number exponent = NumberOf(e);
        const int bits = modulus == nullptr ? 0 : BN_num_bits(modulus.get());
        if (bits < kLeastRsaBits || bits > kMostRsaBits) {
          return BadKey(field_ + ".n", absl::StrCat(bits, " bits"), "2048 to 8192");
        }
        if (IsExponent(exponent.get())) key = RsaKey(*modulus, *exponent);
        break;
      }
      case Signing::kEs256: {
        ASSIGN_OR_RETURN(const std::string x, Bytes("x"));
        ASSIGN_OR_RETURN(const std::string y, Bytes("y"));
        if (x.size() == kCoordinateBytes && y.size() == kCoordinateBytes) key = P256Key(x, y);
        break;
      }
      case Signing::kEdDsa: {
        ASSIGN_OR_RETURN(const std::string x, Bytes("x"));
        if (x.size() == kCoordinateBytes) {
          key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, BytesOf(x), x.size());
        }
        break;
      }
    }
    if (key == nullptr) return BadKey(field_, "numbers that are no key", "a public key");
    return key;
  }

  const std::string field_;
  const json& key_;
};

absl::StatusOr<SigningKeys> SigningKeys::Parse(std::string_view text) {
  ASSIGN_OR_RETURN(const json document, ParseJson("jwt-keys", text, kMostBytes));
  const auto keys = document.is_object() ? document.find("keys") : document.end();
  if (keys == document.end() || !keys->is_array() || keys->size() > kMostKeys) {
    return BadSet("no such list", absl::StrCat("a list of at most ", kMostKeys, " keys"));
  }
  SigningKeys result;
  for (size_t i = 0; i < keys->size(); ++i) {
    if (const absl::Status status = result.Add(absl::StrCat("keys[", i, "]"), (*keys)[i]);
        !status.ok()) {
      result.left_out_.emplace_back(status.message());
    }
  }
  if (!result.keys_.empty()) return result;
  const std::string why = result.left_out_.empty() ? "" : result.left_out_.front();
  return BadSet("none for RS256, ES256 or EdDSA",
                absl::StrCat("at least one", why.empty() ? "" : "; ", why));
}

absl::Status SigningKeys::Add(const std::string& field, const json& member) {
  ASSIGN_OR_RETURN(std::optional<Key> key, KeyReader(field, member).Read());
  if (!key) return absl::OkStatus();
  // Keys of other algorithms may have the same kid (RFC 7517, 4.5).
  const bool is_second =
      key->id && std::any_of(keys_.begin(), keys_.end(), [&key](const Key& other) {
        return other.id == key->id && other.algorithm == key->algorithm;
      });
  if (is_second) return BadKey(field + ".kid", "one for the second time", "each one once");
  keys_.push_back(*std::move(key));
  return absl::OkStatus();
}

bool SigningKeys::Verify(Signing algorithm, const std::optional<std::string>& key_id,
                         std::string_view text, std::string_view signature) const {
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (key.algorithm != algorithm || (key_id && key.id != key_id)) continue;
    if (found != nullptr) return false;  // It does not say which one.
    found = &key;
  }
  if (found == nullptr) return false;
  if (algorithm != Signing::kEs256) {
    return Verifies(found->key.get(), algorithm, text, signature);
  }
  const std::string der = DerOf(signature);
  return !der.empty() && Verifies(found->key.get(), algorithm, text, der);
}

}  // namespace gemmd
