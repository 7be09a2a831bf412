// SPDX-License-Identifier: Apache-2.0
#include "server/trust/web_token.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "server/trust/identity.h"
#include "server/trust/json_text.h"
#include "server/trust/openssl_objects.h"

namespace gemmd {

std::optional<std::string> FromBase64Url(std::string_view text) {
  const absl::string_view coded(text.data(), text.size());
  std::string bytes;
  if (!absl::WebSafeBase64Unescape(coded, &bytes)) return std::nullopt;
  // Abseil also reads padding, spaces and bits beyond the last byte, but writes none.
  if (absl::WebSafeBase64Escape(bytes) != coded) return std::nullopt;
  return bytes;
}

namespace {

using nlohmann::json;

constexpr size_t kCoordinateBytes =
    32;  // A coordinate of P-256 has as many bytes as a key of Ed25519.
constexpr int kMinRsaBits = 2048;
constexpr int kMaxRsaBits = 8192;

using openssl::FreeBy;
using Number = std::unique_ptr<BIGNUM, FreeBy<BN_free>>;
using Builder = std::unique_ptr<OSSL_PARAM_BLD, FreeBy<OSSL_PARAM_BLD_free>>;
using Parameters = std::unique_ptr<OSSL_PARAM, FreeBy<OSSL_PARAM_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, FreeBy<EVP_PKEY_CTX_free>>;
using DigestContext = std::unique_ptr<EVP_MD_CTX, FreeBy<EVP_MD_CTX_free>>;
using EcSignature = std::unique_ptr<ECDSA_SIG, FreeBy<ECDSA_SIG_free>>;

const uint8_t* BytesOf(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

Number NumberOf(std::string_view bytes) {
  return Number(BN_bin2bn(BytesOf(bytes), static_cast<int>(bytes.size()), nullptr));
}

openssl::Key KeyOf(const char* kind, OSSL_PARAM_BLD* builder) {
  const Parameters parameters(OSSL_PARAM_BLD_to_param(builder));
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, kind, nullptr));
  EVP_PKEY* key = nullptr;
  if (parameters == nullptr || context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, parameters.get()) != 1) {
    return nullptr;
  }
  return openssl::Key(key);
}

// With an exponent of 1, signatures could be made without the private key.
bool IsExponent(const BIGNUM* number) {
  constexpr int kMaxBits = 32;
  return number != nullptr && BN_is_odd(number) == 1 && BN_is_one(number) == 0 &&
         BN_num_bits(number) <= kMaxBits;
}

openssl::Key RsaKey(const BIGNUM& modulus, const BIGNUM& exponent) {
  const Builder builder(OSSL_PARAM_BLD_new());
  if (builder == nullptr ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, &modulus) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, &exponent) != 1) {
    return nullptr;
  }
  return KeyOf("RSA", builder.get());
}

openssl::Key P256Key(std::string_view x, std::string_view y) {
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

// Converts a signature of RFC 7518, section 3.4, to the form that OpenSSL takes; empty if it is
// invalid.
std::string DerOf(std::string_view signature) {
  if (signature.size() != 2 * kCoordinateBytes) return "";
  Number r = NumberOf(signature.substr(0, kCoordinateBytes));
  Number s = NumberOf(signature.substr(kCoordinateBytes));
  const EcSignature pair(ECDSA_SIG_new());
  if (r == nullptr || s == nullptr || pair == nullptr ||
      ECDSA_SIG_set0(pair.get(), r.get(), s.get()) != 1) {
    return "";
  }
  (void)r.release();  // The pair now owns both.
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
  return Invalid(field, got, want);
}

absl::Status BadSet(const std::string& got, const std::string& want) {
  return BadKey("jwt-keys: keys", got, want);
}

std::string TextIn(const json& key, const char* name) {
  const auto member = key.find(name);
  return member != key.end() && member->is_string() ? member->get<std::string>() : "";
}

std::optional<Signing> AlgorithmOf(const json& key) {
  if (TextIn(key, "kty") == "RSA") return Signing::kRs256;
  if (TextIn(key, "kty") == "EC" && TextIn(key, "crv") == "P-256") return Signing::kEs256;
  if (TextIn(key, "kty") == "OKP" && TextIn(key, "crv") == "Ed25519") return Signing::kEdDsa;
  return std::nullopt;
}

absl::StatusOr<std::string> BytesIn(const std::string& field, const json& key, const char* name) {
  const std::optional<std::string> bytes = FromBase64Url(TextIn(key, name));
  if (bytes && !bytes->empty()) return *bytes;
  return BadKey(absl::StrCat(field, ".", name), "no base64url", "base64url without padding");
}

absl::StatusOr<openssl::Key> KeyIn(const std::string& field, const json& member,
                                   Signing algorithm) {
  openssl::Key key;
  switch (algorithm) {
    case Signing::kRs256: {
      ASSIGN_OR_RETURN(const std::string n, BytesIn(field, member, "n"));
      ASSIGN_OR_RETURN(const std::string e, BytesIn(field, member, "e"));
      const Number modulus = NumberOf(n);
      const Number exponent = NumberOf(e);
      const int bits = modulus == nullptr ? 0 : BN_num_bits(modulus.get());
      if (bits < kMinRsaBits || bits > kMaxRsaBits) {
        return BadKey(field + ".n", absl::StrCat(bits, " bits"), "2048 to 8192");
      }
      if (IsExponent(exponent.get())) key = RsaKey(*modulus, *exponent);
      break;
    }
    case Signing::kEs256: {
      ASSIGN_OR_RETURN(const std::string x, BytesIn(field, member, "x"));
      ASSIGN_OR_RETURN(const std::string y, BytesIn(field, member, "y"));
      if (x.size() == kCoordinateBytes && y.size() == kCoordinateBytes) key = P256Key(x, y);
      break;
    }
    case Signing::kEdDsa: {
      ASSIGN_OR_RETURN(const std::string x, BytesIn(field, member, "x"));
      if (x.size() == kCoordinateBytes) {
        key.reset(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, BytesOf(x), x.size()));
      }
      break;
    }
  }
  if (key == nullptr) return BadKey(field, "numbers that are no key", "a public key");
  return key;
}

}  // namespace

std::optional<Signing> SigningOf(std::string_view algorithm) {
  if (algorithm == "RS256") return Signing::kRs256;
  if (algorithm == "ES256") return Signing::kEs256;
  if (algorithm == "EdDSA") return Signing::kEdDsa;
  return std::nullopt;
}

absl::StatusOr<SigningKeys> SigningKeys::Parse(std::string_view text) {
  ASSIGN_OR_RETURN(const json document, ParseJson("jwt-keys", text, kMaxBytes));
  const auto keys = document.is_object() ? document.find("keys") : document.end();
  if (keys == document.end() || !keys->is_array() || keys->size() > kMaxKeys) {
    return BadSet("no list of keys", absl::StrCat("a list of at most ", kMaxKeys, " keys"));
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
  if (!member.is_object()) return BadKey(field, "no object", "a key");
  // Anybody who can read the file of such a key could sign with it.
  if (TextIn(member, "kty") == "oct" || member.contains("d") || member.contains("k")) {
    return BadKey(field, "a private or symmetric key", "a public one");
  }
  const std::optional<Signing> algorithm = AlgorithmOf(member);
  // Keys of other kinds, and for other uses, are no error.
  if (!algorithm || (member.contains("use") && TextIn(member, "use") != "sig") ||
      (member.contains("alg") && SigningOf(TextIn(member, "alg")) != algorithm)) {
    return absl::OkStatus();
  }
  Key key = {.id = std::nullopt, .algorithm = *algorithm, .key = nullptr};
  if (member.contains("kid")) {
    if (!member["kid"].is_string()) return BadKey(field + ".kid", "no text", "text");
    key.id = TextIn(member, "kid");
  }
  ASSIGN_OR_RETURN(key.key, KeyIn(field, member, *algorithm));
  // Keys of other algorithms may have the same kid (RFC 7517, section 4.5).
  const bool is_second =
      key.id && std::any_of(keys_.begin(), keys_.end(), [&key](const Key& other) {
        return other.id == key.id && other.algorithm == key.algorithm;
      });
  if (is_second) return BadKey(field + ".kid", "a kid that an earlier key has", "each kid once");
  keys_.push_back(std::move(key));
  return absl::OkStatus();
}

bool SigningKeys::Verify(Signing algorithm, const std::optional<std::string>& key_id,
                         std::string_view text, std::string_view signature) const {
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (key.algorithm != algorithm || (key_id && key.id != key_id)) continue;
    if (found != nullptr) return false;  // The key is ambiguous.
    found = &key;
  }
  if (found == nullptr) return false;
  if (algorithm != Signing::kEs256) return Verifies(found->key.get(), algorithm, text, signature);
  const std::string der = DerOf(signature);
  return !der.empty() && Verifies(found->key.get(), algorithm, text, der);
}

namespace {

using nlohmann::json;

absl::Status Bad(const char* what) {
  return absl::UnauthenticatedError(absl::StrCat("token: ", what));
}

absl::StatusOr<json> ObjectOf(std::string_view part) {
  const std::optional<std::string> text = FromBase64Url(part);
  if (!text) return Bad("a part is not base64url");
  const absl::StatusOr<json> object = ParseJson("token", *text, kMaxWebTokenBytes);
  if (!object.ok() || !object->is_object()) return Bad("a part is not a JSON object");
  return *object;
}

// The seconds of a time since 1970, rounded down; nullopt if the member is not a valid time.
std::optional<int64_t> TimeOf(const json& member) {
  constexpr double kMaxSeconds = 253402300800;  // The year 10000.
  const double seconds = member.is_number() ? member.get<double>() : -1;
  if (!(seconds >= 0 && seconds < kMaxSeconds)) return std::nullopt;
  return static_cast<int64_t>(seconds);
}

bool IsFor(const json& claims, const std::string& audience) {
  const auto member = claims.find("aud");
  if (member == claims.end()) return false;
  if (member->is_string()) return *member == audience;
  return member->is_array() &&
         std::any_of(member->begin(), member->end(),
                     [&audience](const json& one) { return one == audience; });
}

absl::StatusOr<WebToken> ReadClaims(const json& claims, const WebTokenRules& rules, int64_t now_s) {
  WebToken token;
  const auto ends = claims.find("exp");
  const std::optional<int64_t> ends_s = ends == claims.end() ? std::nullopt : TimeOf(*ends);
  if (!ends_s) return Bad("it has no expiry time (exp)");
  token.ends_s = *ends_s + rules.clock_skew_s;
  token.begins_s = std::numeric_limits<int64_t>::min();
  if (const auto begins = claims.find("nbf"); begins != claims.end()) {
    const std::optional<int64_t> begins_s = TimeOf(*begins);
    if (!begins_s) return Bad("its nbf is not a time");
    token.begins_s = *begins_s - rules.clock_skew_s;
  }
  if (now_s >= token.ends_s) return Bad("it has expired");
  if (now_s < token.begins_s) return Bad("it is not valid yet");
  if (!IsFor(claims, rules.audience)) return Bad("it is for another audience");
  const auto issuer = claims.find("iss");
  const bool is_issuer = issuer != claims.end() && *issuer == rules.issuer;
  if (!rules.issuer.empty() && !is_issuer) return Bad("it is from another issuer");
  const auto subject = claims.find("sub");
  if (subject == claims.end() || !subject->is_string()) return Bad("it has no subject");
  token.name = subject->get<std::string>();
  if (!IsOutsideName(token.name)) return Bad("its subject is not a valid name");
  return token;
}

}  // namespace

bool LooksLikeWebToken(std::string_view token) {
  return std::count(token.begin(), token.end(), '.') == 2;
}

absl::StatusOr<WebToken> VerifyWebToken(std::string_view token, const SigningKeys& keys,
                                        const WebTokenRules& rules, int64_t now_s) {
  if (token.size() > kMaxWebTokenBytes) return Bad("it is too long");
  if (!LooksLikeWebToken(token)) return Bad("it does not have three parts");
  const size_t first = token.find('.');
  const size_t second = token.find('.', first + 1);
  ASSIGN_OR_RETURN(const json header, ObjectOf(token.substr(0, first)));
  // Extensions that a header lists as critical must be understood (RFC 7515, section 4.1.11), and
  // none is.
  if (header.contains("crit")) return Bad("its header has critical extensions");
  const auto name = header.find("alg");
  const std::optional<Signing> algorithm = name != header.end() && name->is_string()
                                               ? SigningOf(name->get_ref<const std::string&>())
                                               : std::nullopt;
  if (!algorithm) return Bad("its algorithm is not supported");
  std::optional<std::string> key_id;
  if (const auto id = header.find("kid"); id != header.end()) {
    if (!id->is_string()) return Bad("its kid is not a string");
    key_id = id->get<std::string>();
  }
  const std::optional<std::string> signature = FromBase64Url(token.substr(second + 1));
  if (!signature || !keys.Verify(*algorithm, key_id, token.substr(0, second), *signature)) {
    return Bad("no key of the set has signed it");
  }
  ASSIGN_OR_RETURN(const json claims, ObjectOf(token.substr(first + 1, second - first - 1)));
  return ReadClaims(claims, rules, now_s);
}

}  // namespace gemmd
