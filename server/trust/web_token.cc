// SPDX-License-Identifier: Apache-2.0
#include "server/trust/web_token.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/trust/base64url.h"
#include "server/trust/identity.h"
#include "server/trust/json_text.h"

namespace gemmd {
namespace {

using nlohmann::json;

absl::Status Bad(const char* what) {
  return absl::UnauthenticatedError(absl::StrCat("token: ", what));
}

absl::StatusOr<json> ObjectOf(std::string_view part) {
  const std::optional<std::string> text = FromBase64Url(part);
  if (!text) return Bad("a part is no base64url");
  const absl::StatusOr<json> object = ParseJson("token", *text, kMostWebTokenBytes);
  if (!object.ok() || !object->is_object()) return Bad("a part is no JSON object");
  return *object;
}

// The seconds of a time since 1970, rounded down; nothing where the member is no such time.
std::optional<int64_t> TimeOf(const json& member) {
  constexpr double kMostSeconds = 253402300800;  // The year 10000.
  const double seconds = member.is_number() ? member.get<double>() : -1;
  if (!(seconds >= 0 && seconds < kMostSeconds)) return std::nullopt;
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
  if (!ends_s) return Bad("it does not say until when it is good");
  token.ends_s = *ends_s + rules.clock_skew_s;
  token.begins_s = std::numeric_limits<int64_t>::min();
  if (const auto begins = claims.find("nbf"); begins != claims.end()) {
    const std::optional<int64_t> begins_s = TimeOf(*begins);
    if (!begins_s) return Bad("its beginning is no time");
    token.begins_s = *begins_s - rules.clock_skew_s;
  }
  if (now_s >= token.ends_s) return Bad("it has expired");
  if (now_s < token.begins_s) return Bad("it is not good yet");
  if (!IsFor(claims, rules.audience)) return Bad("it is for another audience");
  const auto issuer = claims.find("iss");
  const bool is_issuer = issuer != claims.end() && *issuer == rules.issuer;
  if (!rules.issuer.empty() && !is_issuer) return Bad("it is another issuer's");
  const auto subject = claims.find("sub");
  if (subject == claims.end() || !subject->is_string()) return Bad("it has no subject");
  token.name = subject->get<std::string>();
  if (!IsOutsideName(token.name)) return Bad("its subject is no name");
  return token;
}

}  // namespace

bool LooksLikeWebToken(std::string_view token) {
  return std::count(token.begin(), token.end(), '.') == 2;
}

absl::StatusOr<WebToken> VerifyWebToken(std::string_view token, const SigningKeys& keys,
                                        const WebTokenRules& rules, int64_t now_s) {
  if (token.size() > kMostWebTokenBytes) return Bad("it is too long");
  if (!LooksLikeWebToken(token)) return Bad("it has not three parts");
  const size_t first = token.find('.');
  const size_t second = token.find('.', first + 1);
  ASSIGN_OR_RETURN(const json header, ObjectOf(token.substr(0, first)));
  // What a header calls critical must be understood (RFC 7515, 4.1.11), and nothing is.
  if (header.contains("crit")) return Bad("its header asks for what is not known");
  const auto name = header.find("alg");
  const std::optional<Signing> algorithm = name != header.end() && name->is_string()
                                               ? SigningOf(name->get_ref<const std::string&>())
                                               : std::nullopt;
  if (!algorithm) return Bad("its algorithm is not taken");
  std::optional<std::string> key_id;
  if (const auto id = header.find("kid"); id != header.end()) {
    if (!id->is_string()) return Bad("its key's id is no text");
    key_id = id->get<std::string>();
  }
  const std::optional<std::string> signature = FromBase64Url(token.substr(second + 1));
  if (!signature || !keys.Verify(*algorithm, key_id, token.substr(0, second), *signature)) {
    return Bad("no key has signed it");
  }
  ASSIGN_OR_RETURN(const json claims, ObjectOf(token.substr(first + 1, second - first - 1)));
  return ReadClaims(claims, rules, now_s);
}

}  // namespace gemmd
