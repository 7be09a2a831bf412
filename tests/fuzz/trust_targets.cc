// SPDX-License-Identifier: Apache-2.0
//
// What decides who may do what: files of rules, tokens and keys, and the tokens that callers
// present.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/trust/identity.h"
#include "server/trust/json_text.h"
#include "server/trust/trust.h"
#include "server/trust/web_token.h"
#include "tests/fuzz/target.h"
#include "tests/server/trust/token_signer.h"

namespace gemmd::fuzz {
namespace {

using nlohmann::json;

// Refusals go to the log and to operators: they quote at most one line of a file.
void DemandShort(const absl::Status& status) {
  Demand(status.message().size() < 1000, "a refusal is long");
}

// Line ends of YAML alone (5.4 of its version 1.1), which change the meaning of text around them.
bool HasOtherLineEnds(std::string_view text) {
  for (const std::string_view end : {"\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"}) {
    if (text.find(end) != text.npos) return true;
  }
  return false;
}

void CheckGrant(const Rules& rules, const std::string& name, const json& member) {
  const bool is_pattern = name.ends_with('*');
  const Grant* const grant =
      rules.Find(is_pattern ? std::string_view(name).substr(0, name.size() - 1) : name);
  Demand(grant != nullptr, "a name of the file has no grant");
  if (is_pattern) return;  // The name may contain one itself.
  Demand(grant->share >= 0.01 && grant->share <= 100, "a share is out of bounds");
  Demand(grant->in_flight.requests >= 1 && grant->in_flight.bytes >= 1 &&
             grant->in_flight.device_ns_a_minute >= 1,
         "a caller has no room at all");
  Demand(grant->tensor_bytes >= 1 && grant->device_tensor_bytes >= 1 && grant->message_bytes >= 1,
         "a bound is below one byte");
  size_t roles = 0;
  for (size_t i = 0; i < kRoles; ++i) roles += grant->roles.Has(static_cast<Role>(i)) ? 1 : 0;
  Demand(roles == member.at("may").size(), "a caller has other roles than the file says");
  Demand(grant->devices.size() == (member.contains("devices") ? member["devices"].size() : 0),
         "a caller has other devices than the file says");
}

void CheckRules(std::string_view input, Rules::Format format,
                const absl::StatusOr<json>& document) {
  const absl::StatusOr<Rules> rules = Rules::Parse(input, format);
  if (!rules.ok()) return DemandShort(rules.status());
  Demand(document.ok() && document->size() == 1, "rules are read of what is no document");
  const json& identities = document->at("identities");
  Demand(rules->size() == identities.size(), "not each identity has one rule");
  for (const auto& [name, member] : identities.items()) CheckGrant(*rules, name, member);
  Demand(rules->Find("") == nullptr, "there is a rule for no name");
}

// The text followed by spaces, up to the size that a file may have.
std::string Lengthened(std::string_view text, size_t bytes) {
  std::string longest(text);
  longest.resize(bytes, ' ');
  return longest;
}

// Parses the text as JSON and as YAML, which nearly contains JSON: where both accept it, the
// results are equal.
void RunRules(std::string_view input) {
  if (Choices(input).OnceIn(4096)) {
    const std::string longest = Lengthened(input, Rules::kMaxBytes);
    for (const auto format : {Rules::Format::kJson, Rules::Format::kYaml}) {
      Demand(!Rules::Parse(longest + " ", format).ok(), "a file of any length is read");
    }
  }
  const absl::StatusOr<json> as_json = ParseJson("rules", input, Rules::kMaxBytes);
  const absl::StatusOr<json> as_yaml = ParseYaml("rules", input, Rules::kMaxBytes);
  if (!as_json.ok()) DemandShort(as_json.status());
  if (!as_yaml.ok()) DemandShort(as_yaml.status());
  CheckRules(input, Rules::Format::kJson, as_json);
  CheckRules(input, Rules::Format::kYaml, as_yaml);
  if (!as_json.ok() || !as_yaml.ok() || HasOtherLineEnds(input)) return;
  Demand(*as_json == *as_yaml, "a file has another meaning in YAML");
}

std::vector<std::string> RulesSeeds() {
  return {
      R"({"identities": {"batch": {"may": ["multiply", "statistics"], "priority": "low",
            "requests": 16, "bytes": 1048576, "device_seconds_a_minute": 1.5, "tensor_bytes": 7,
            "device_tensor_bytes": 9, "share": 2.5, "message_bytes": 4096,
            "devices": ["cpu", "cuda:0"]}, "plain": {"may": ["administer"]}}})",
      R"({"identities":{"spiffe://a/*":{"may":["tensors","registry"]},
            "spiffe://a/b":{"may":["reflection"],"priority":"normal"},"uid:0":{"may":[]}}})",
      "identities:\n  batch: {may: [multiply], priority: low}   # at night\n"
      "  'spiffe://corp/*':\n    may:\n    - tensors\n    - \"registry\"\n    share: 0.5\n",
      "---\nidentities: {a: {may: []}}\n...\n",
      "a: |\n  two\n  lines\nb: >-\n  one\n  line\nc: [~, true, null, 1e3, -2]\n",
      "? [a]\n: &x !!int 1\n",
      R"({"a": "\u0061\/\n", "e": null, "f": false, "b": [[[[[[[[1]]]]]]]], "c": 1e400, "d": -0.0})",
      R"({"identities": {"a": {"may": [], "requests": 0}}})",
      R"({"identities": {"a": {"may": [], "share": 1000, "devices": []}}})",
      R"({"identities": {"*": {"may": []}}, "roles": 5})",
      R"({"identities": {"*": {"may": []}}})",
      R"({"identities": {"a b": {"may": []}}})",
      R"({"identities": 5})",
      "{}",
      "[]",
      R"({"identities": {"a": 5}})",
      R"({"identities": {"a": {"may": 5}}})",
      R"({"identities": {"a": {"may": ["x"]}}})",
      R"({"identities": {"a": {}}})",
      R"({"identities": {"a": {"may": [], "share": "x"}}})",
      R"({"identities": {"a": {"may": [], "share": 0}}})",
      R"({"identities": {"a": {"may": [], "device_seconds_a_minute": 0}}})",
      R"({"identities": {"a": {"may": [], "priority": "high"}}})",
      R"({"identities": {"a": {"may": [], "devices": [5]}}})",
      R"({"identities": {"a": {"may": [], "other": -5}}})",
      "a: 1\n---\nb: 2\n",
      "a: &x 1\nb: *x\n",
      "a: *x\n",
      "a: !!str 1\n",
      "a: 1\na: 2\n",
      "{a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}}",
      R"({"identities": {"a": {"may": ["tensors", "tensors"]}, "a": {}}})"};
}

void RunTokens(std::string_view input) {
  if (Choices(input).OnceIn(4096)) {
    const std::string longest = Lengthened(input, TokenHashes::kMaxBytes);
    Demand(!TokenHashes::Parse(longest + " ").ok(), "a file of any length is read");
  }
  const absl::StatusOr<TokenHashes> hashes = TokenHashes::Parse(input);
  if (!hashes.ok()) {
    DemandShort(hashes.status());
    return;
  }
  Demand(!hashes->Find(TextDigest::Of(input)), "a file has the hash of itself");
  while (!input.empty()) {
    const size_t end = std::min(input.find('\n'), input.size());
    std::string_view line = input.substr(0, end);
    input.remove_prefix(std::min(end + 1, input.size()));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    if (line.size() < 65 || line.front() == '#') continue;
    const auto digest = TextDigest::FromHex(line.substr(line.size() - 64));
    if (!digest || line.find('#') != line.npos) continue;
    const std::optional<std::string> name = hashes->Find(*digest);
    Demand(name && IsOutsideName(*name), "a hash of the file is nobody's");
    Demand(line.find(*name) != line.npos, "a hash is another one's");
  }
}

std::vector<std::string> TokensSeeds() {
  const std::string hash(64, 'a');
  return {"batch: " + hash + "\n",
          "# who\n\nspiffe://a:" + std::string(64, '0') + "\r\nb: " + hash,
          "uid:0: " + hash,
          "a: " + hash + "\nb: " + hash,
          "short: aa",
          "no colon"};
}

// Whoever can read the file must not be able to sign with it.
void RunKeys(std::string_view input) {
  const absl::StatusOr<SigningKeys> keys = SigningKeys::Parse(input);
  if (!keys.ok()) return DemandShort(keys.status());
  const absl::StatusOr<json> document = ParseJson("keys", input, SigningKeys::kMaxBytes);
  Demand(document.ok(), "keys are read from text that is not JSON");
  const json& list = document->at("keys");
  Demand(!list.empty() && list.size() <= SigningKeys::kMaxKeys, "a set has no key, or too many");
  for (const json& key : list) {
    Demand(!key.contains("d") && !key.contains("k"), "a set has a private key");
  }
  for (const Signing algorithm : {Signing::kRs256, Signing::kEs256, Signing::kEdDsa}) {
    Demand(!keys->Verify(algorithm, std::nullopt, "text", input), "a signature is nobody's");
    Demand(!keys->Verify(algorithm, std::nullopt, "text", std::string(64, 'x')),
           "a signature of its length is nobody's");
    Demand(!keys->Verify(algorithm, "no such key", "text", std::string(64, 'x')),
           "a key that there is not has signed");
  }
}

std::vector<std::string> KeysSeeds() {
  std::vector<std::string> seeds;
  std::string all;
  for (const auto kind :
       {TokenSigner::Kind::kRsa, TokenSigner::Kind::kP256, TokenSigner::Kind::kEd25519}) {
    const std::string key = TokenSigner(kind, std::to_string(static_cast<int>(kind))).PublicKey();
    seeds.push_back(R"({"keys":[)" + key + "]}");
    all += key + ",";
  }
  seeds.push_back(R"({"keys":[)" + all +
                  R"({"kty":"EC","crv":"P-384"},{"kty":"RSA","use":"enc"},{"alg":"ES256"}]})");
  seeds.push_back(R"({"keys":[{"kty":"oct","k":"c2VjcmV0"}]})");
  seeds.push_back(R"({"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB","kid":"a","use":"sig"}]})");
  seeds.push_back(R"({"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA==","kid":5}]})");
  return seeds;
}

// A signer of tokens, and the set with its key alone. The key differs in each process, so inputs
// are the text to sign, not signatures.
struct Provider {
  TokenSigner signer{TokenSigner::Kind::kEd25519, "e"};
  SigningKeys keys = *SigningKeys::Parse(R"({"keys":[)" + signer.PublicKey() + "]}");
};

constexpr int64_t kNow = 1'800'000'000;

void CheckClaims(const WebToken& token, const std::string& text, const WebTokenRules& rules) {
  const json claims = json::parse(text, nullptr, /*allow_exceptions=*/false);
  Demand(claims.is_object(), "claims are read of what is no object");
  Demand(IsOutsideName(token.name) && claims.value("sub", json()) == token.name,
         "a token gives a name that it must not give");
  const json ends = claims.value("exp", json());
  Demand(ends.is_number() && ends.get<double>() + static_cast<double>(rules.clock_skew_s) > kNow,
         "a token has expired");
  if (const json begins = claims.value("nbf", json()); !begins.is_null()) {
    Demand(begins.is_number() &&
               begins.get<double>() - static_cast<double>(rules.clock_skew_s) < kNow + 1,
           "a token is not good yet");
  }
  const json audience = claims.value("aud", json());
  Demand(audience == rules.audience ||
             (audience.is_array() && audience.dump().find(rules.audience) != std::string::npos),
         "a token is for somebody else");
  Demand(claims.value("iss", json()) == rules.issuer, "a token is another issuer's");
  Demand(token.IsGoodAt(kNow), "a token that was taken is not good");
}

// The first line is the header and the rest the claims, both to be signed by the provider. The same
// text is also tried as an unsigned token.
void RunWebToken(std::string_view input) {
  static const auto* const provider = new Provider();
  const WebTokenRules rules = {.audience = "gemmd", .issuer = "https://a", .clock_skew_s = 60};
  if (const std::optional<std::string> bytes = FromBase64Url(input)) {
    Demand(ToBase64Url(*bytes) == input, "two texts stand for the same bytes");
  }
  Demand(!VerifyWebToken(input, provider->keys, rules, kNow).ok(), "an unsigned token is taken");
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string header(input.substr(0, end));
  const std::string claims(input.substr(std::min(end + 1, input.size())));
  const std::string token =
      header.empty() ? provider->signer.Sign(claims) : provider->signer.Sign(header, claims);
  const absl::StatusOr<WebToken> taken = VerifyWebToken(token, provider->keys, rules, kNow);
  if (!taken.ok()) return DemandShort(taken.status());
  CheckClaims(*taken, claims, rules);
  const json head = header.empty() ? json() : json::parse(header, nullptr, false);
  Demand(header.empty() || (head.value("alg", json()) == "EdDSA" && !head.contains("crit") &&
                            head.value("kid", json("e")) == "e"),
         "a header is taken that must not be");
  // A token with a changed signature is refused.
  std::string changed = token;
  changed.back() = changed.back() == 'A' ? 'Q' : 'A';
  Demand(!VerifyWebToken(changed, provider->keys, rules, kNow).ok(), "a changed token is taken");
}

std::vector<std::string> WebTokenSeeds() {
  const std::string claims = R"({"sub":"a","aud":"gemmd","iss":"https://a","exp":1800000100})";
  const std::string list =
      R"({"sub":"spiffe://a","aud":["x","gemmd"],"iss":"https://a","exp":1.8e9,"nbf":1800000059.5})";
  return {"\n" + claims,
          "\n" + list,
          R"({"alg":"EdDSA","kid":"e","typ":"JWT"})"
          "\n" +
              claims,
          R"({"alg":"EdDSA"})"
          "\n" +
              list,
          R"({"alg":"none"})"
          "\n" +
              claims,
          R"({"alg":"RS256","kid":"e","crit":["x"]})"
          "\n" +
              claims,
          R"({"alg":"ES256","kid":5})"
          "\n" +
              claims,
          "\n"
          R"({"sub":"uid:0","aud":"gemmd","iss":"https://a","exp":9e18})",
          "eyJhbGciOiJub25lIn0.e30.",
          "Zm9v",
          "a.b.c"};
}

}  // namespace

std::vector<Target> TrustTargets() {
  return {{"rules", RunRules, RulesSeeds},
          {"tokens", RunTokens, TokensSeeds},
          {"keys", RunKeys, KeysSeeds},
          {"web-token", RunWebToken, WebTokenSeeds}};
}

}  // namespace gemmd::fuzz
