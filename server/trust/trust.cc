// SPDX-License-Identifier: Apache-2.0
#include "server/trust/trust.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"
#include "server/system/files.h"
#include "server/trust/identity.h"
#include "server/trust/openssl_objects.h"
#include "server/trust/web_token.h"

namespace gemmd {

namespace {

// Looked up once, because the look-up takes longer than digesting a token.
const EVP_MD* Algorithm() {
  static const std::unique_ptr<EVP_MD, openssl::FreeBy<EVP_MD_free>> sha256(
      EVP_MD_fetch(nullptr, "SHA256", nullptr));
  return sha256.get();
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
    const char* const end = digits.data() + 2 * i + 2;
    if (std::from_chars(end - 2, end, digest.bytes[i], 16).ptr != end) return std::nullopt;
  }
  return digest;
}

bool TextDigest::Equals(const TextDigest& other) const {
  return CRYPTO_memcmp(bytes.data(), other.bytes.data(), bytes.size()) == 0;
}

namespace {

absl::Status BadLine(int line, std::string_view got, std::string_view want) {
  return Invalid(Concat("tokens: line ", line), got, want);
}

std::string_view Stripped(std::string_view text) {
  const absl::string_view rest = absl::StripAsciiWhitespace({text.data(), text.size()});
  return {rest.data(), rest.size()};
}

}  // namespace

absl::StatusOr<TokenHashes> TokenHashes::Parse(std::string_view text) {
  if (text.size() > kMaxBytes) {
    return Invalid("tokens", Concat(text.size(), " bytes"), Concat("at most ", kMaxBytes));
  }
  TokenHashes hashes;
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view entry = Stripped(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty() || entry.starts_with('#')) continue;
    const size_t colon = entry.rfind(':');
    if (colon == entry.npos) return BadLine(line, "no colon", "IDENTITY: SHA-256");
    const std::string_view name = Stripped(entry.substr(0, colon));
    const std::optional<TextDigest> digest = TextDigest::FromHex(Stripped(entry.substr(colon + 1)));
    if (!IsOutsideName(name)) {
      return BadLine(line, "a name that no token may have", "up to 256 printable characters");
    }
    if (!digest) return BadLine(line, "no SHA-256", "64 hexadecimal digits");
    if (hashes.Find(*digest)) return BadLine(line, "the hash of an earlier line", "each hash once");
    hashes.by_key_.emplace(digest->Key(), Known{*digest, std::string(name)});
  }
  return hashes;
}

std::optional<std::string> TokenHashes::Find(const TextDigest& digest) const {
  const auto [first, last] = by_key_.equal_range(digest.Key());
  for (auto known = first; known != last; ++known) {
    if (known->second.digest.Equals(digest)) return known->second.name;
  }
  return std::nullopt;
}

namespace {

// The size of the caches of callers, with which most calls take a single look-up.
constexpr size_t kMaxKnown = 4096;

constexpr size_t kMaxTokenBytes = kMaxWebTokenBytes;

template <typename Parsed>
absl::StatusOr<Parsed> ReadAndParse(
    const char* option, const std::string& path,
    absl::FunctionRef<absl::StatusOr<Parsed>(std::string_view text)> parse) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, Parsed::kMaxBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": cannot read ", path, ": ", text.status().message()));
  }
  absl::StatusOr<Parsed> parsed = parse(*text);
  if (parsed.ok()) return parsed;
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", path, ": ", parsed.status().message()));
}

absl::StatusOr<Rules> ReadRules(const std::string& path) {
  const bool is_yaml = path.ends_with(".yaml") || path.ends_with(".yml");
  return ReadAndParse<Rules>("rules", path, [is_yaml](std::string_view text) {
    return Rules::Parse(text, is_yaml ? Rules::Format::kYaml : Rules::Format::kJson);
  });
}

absl::Status Unauthenticated(const char* why) { return absl::UnauthenticatedError(why); }

}  // namespace

// The files' contents as read at one time, and everything derived from them: all of it is discarded
// together.
class Trust::Snapshot {
 public:
  using Found = absl::StatusOr<std::shared_ptr<const Identity>>;

  Snapshot(Trust& trust, Rules rules, TokenHashes tokens, std::optional<SigningKeys> keys)
      : trust_(trust),
        rules_(std::move(rules)),
        tokens_(std::move(tokens)),
        keys_(std::move(keys)) {}

  size_t size() const { return rules_.size(); }
  std::vector<std::string> left_out_keys() const {
    return keys_ ? keys_->left_out() : std::vector<std::string>();
  }

  Found ByToken(std::string_view token, TokenBucket* bad) {
    if (token.empty() || token.size() > kMaxTokenBytes) return Unauthenticated("token: too long");
    const TextDigest digest = TextDigest::Of(token);
    const int64_t now_s = absl::ToUnixSeconds(trust_.now_());
    {
      MutexLock lock(&mutex_);
      const auto known = by_token_.find(digest.Key());
      if (known != by_token_.end() && known->second.digest.Equals(digest)) {
        const WebToken& token_seen = known->second.token;
        if (token_seen.IsGoodAt(now_s)) return known->second.identity;
        // Valid when examined: a client that shows the same token until it is renewed causes no
        // further examination.
        if (now_s >= token_seen.ends_s) return Unauthenticated("token: expired");
      }
    }
    ASSIGN_OR_RETURN(const WebToken good, Examine(token, digest, bad, now_s));
    std::shared_ptr<const Identity> identity = ByName(good.name);
    MutexLock lock(&mutex_);
    MakeRoom(now_s);
    by_token_.insert_or_assign(digest.Key(), Known{digest, good, identity});
    return identity;
  }

  // The name must come from a source other than the rules.
  std::shared_ptr<const Identity> ByName(const std::string& name) {
    MutexLock lock(&mutex_);
    const auto known = by_name_.find(name);
    if (known != by_name_.end()) return known->second;
    auto identity = std::make_shared<Identity>();
    identity->name = name;
    if (const Grant* const grant = rules_.Find(name)) {
      identity->grant = *grant;
      identity->use = trust_.UseOf(grant->rule);
    }
    identity->meter = trust_.MeterOf(name);
    // Identities that are still in use stay valid.
    if (by_name_.size() >= kMaxKnown) by_name_.clear();
    by_name_.emplace(name, identity);
    return identity;
  }

  // The first name to which a rule applies, otherwise the first valid name.
  Found ByCertificate(const std::vector<std::string_view>& names) {
    std::string first;
    for (const std::string_view name : names) {
      if (!IsOutsideName(name)) continue;
      if (rules_.Find(name) != nullptr) return ByName(std::string(name));
      if (first.empty()) first = name;
    }
    if (first.empty()) return Unauthenticated("certificate: no name");
    return ByName(first);
  }

  bool Knows(std::string_view name) const { return rules_.Find(name) != nullptr; }

 private:
  struct Known {
    TextDigest digest;
    WebToken token;
    std::shared_ptr<const Identity> identity;
  };

  absl::StatusOr<WebToken> Examine(std::string_view token, const TextDigest& digest,
                                   TokenBucket* bad, int64_t now_s) const {
    if (const std::optional<std::string> name = tokens_.Find(digest)) {
      return WebToken{.name = *name,
                      .begins_s = std::numeric_limits<int64_t>::min(),
                      .ends_s = std::numeric_limits<int64_t>::max()};
    }
    if (!keys_ || !LooksLikeWebToken(token)) return Unauthenticated("token: unknown");
    return trust_.Examine(token, *keys_, bad, now_s);
  }

  void MakeRoom(int64_t now_s) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (by_token_.size() < kMaxKnown) return;
    std::erase_if(by_token_,
                  [now_s](const auto& known) { return !known.second.token.IsGoodAt(now_s); });
    if (by_token_.size() >= kMaxKnown) by_token_.erase(by_token_.begin());
  }

  Trust& trust_;
  const Rules rules_;
  const TokenHashes tokens_;
  const std::optional<SigningKeys> keys_;
  Mutex mutex_;
  std::unordered_map<uint64_t, Known> by_token_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const Identity>> by_name_ ABSL_GUARDED_BY(mutex_);
};

Trust::~Trust() = default;

const Clock& Trust::Steady() {
  static const SteadyClock clock;
  return clock;
}

absl::StatusOr<std::unique_ptr<Trust>> Trust::Load(TrustOptions options, WallClock now,
                                                   const Clock& clock) {
  if (!options.jwt_keys_file.empty() && options.jwt.audience.empty()) {
    return Invalid("jwt-audience", "nothing", "the audience of the tokens, with --jwt-keys");
  }
  std::unique_ptr<Trust> trust(new Trust(std::move(options), std::move(now), clock));
  RETURN_IF_ERROR(trust->Reload());
  return trust;
}

absl::StatusOr<std::shared_ptr<Trust::Snapshot>> Trust::Read() {
  ASSIGN_OR_RETURN(Rules rules, ReadRules(options_.rules_file));
  TokenHashes tokens;
  if (!options_.tokens_file.empty()) {
    ASSIGN_OR_RETURN(tokens,
                     ReadAndParse<TokenHashes>("tokens", options_.tokens_file, TokenHashes::Parse));
  }
  std::optional<SigningKeys> keys;
  if (!options_.jwt_keys_file.empty()) {
    ASSIGN_OR_RETURN(
        keys, ReadAndParse<SigningKeys>("jwt-keys", options_.jwt_keys_file, SigningKeys::Parse));
  }
  return std::make_shared<Snapshot>(*this, std::move(rules), std::move(tokens), std::move(keys));
}

absl::Status Trust::Reload() {
  ASSIGN_OR_RETURN(std::shared_ptr<Snapshot> read, Read());
  MutexLock lock(&mutex_);
  snapshot_.swap(read);
  return absl::OkStatus();
}

std::shared_ptr<Trust::Snapshot> Trust::now() const {
  MutexLock lock(&mutex_);
  return snapshot_;
}

size_t Trust::size() const { return now()->size(); }

std::vector<std::string> Trust::left_out_keys() const { return now()->left_out_keys(); }

absl::StatusOr<std::shared_ptr<const Identity>> Trust::Identify(const Evidence& evidence) {
  const std::shared_ptr<Snapshot> snapshot = now();
  if (!evidence.authorization.empty()) {
    constexpr std::string_view kBearer = "Bearer ";
    const std::string_view value = evidence.authorization.front();
    // Schemes are case-insensitive (RFC 9110, section 11.1).
    const bool is_bearer =
        evidence.authorization.size() == 1 && value.size() > kBearer.size() &&
        absl::EqualsIgnoreCase({value.data(), kBearer.size()}, {kBearer.data(), kBearer.size()});
    if (!is_bearer) return Unauthenticated("authorization: want one bearer token");
    return snapshot->ByToken(value.substr(kBearer.size()), evidence.bad_tokens);
  }
  if (!evidence.names.empty()) return snapshot->ByCertificate(evidence.names);
  // A user without a rule is treated like any caller without evidence.
  if (!evidence.user.empty() && snapshot->Knows(evidence.user)) {
    return snapshot->ByName(std::string(evidence.user));
  }
  if (snapshot->Knows(kAnonymous)) return snapshot->ByName(std::string(kAnonymous));
  return Unauthenticated("caller: no known evidence");
}

namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr TokenBucket::Rate kBadOfConnection = {
    .price_ns = kSecondNs, .max_ns = Trust::kBadTokensOfConnection * kSecondNs};
constexpr TokenBucket::Rate kBadOfAll = TokenBucket::EachSecond(Trust::kBadTokensOfAll);

}  // namespace

absl::StatusOr<WebToken> Trust::Examine(std::string_view token, const SigningKeys& keys,
                                        TokenBucket* bad, int64_t now_s) {
  const int64_t now_ns = clock_.NowNs();
  TokenBucket unknown = {.whole_ns = 1};
  TokenBucket& own = bad == nullptr ? unknown : *bad;
  const bool had_bad_ones = own.is_used();
  if (had_bad_ones &&
      !(own.Has(1, kBadOfConnection, now_ns) && bad_of_all_.Has(1, kBadOfAll, now_ns))) {
    ++unexamined_tokens_;
    return absl::ResourceExhaustedError("token: not examined after too many bad ones");
  }
  absl::StatusOr<WebToken> examined = VerifyWebToken(token, keys, options_.jwt, now_s);
  if (examined.ok()) {
    ++good_tokens_;
    // A connection whose bucket is whole and that shows a good token is again treated as one
    // without bad tokens.
    own.Forgive(now_ns);
    return examined;
  }
  ++bad_tokens_;
  own.Charge(1, kBadOfConnection, now_ns);
  if (had_bad_ones) bad_of_all_.Charge(1, kBadOfAll, now_ns);
  return examined;
}

SignedTokenCounts Trust::signed_tokens() const {
  return {.good = good_tokens_, .bad = bad_tokens_, .unexamined = unexamined_tokens_};
}

std::shared_ptr<RuleUse> Trust::UseOf(const std::string& rule) {
  MutexLock lock(&uses_mutex_);
  for (const auto& use : uses_) {
    if (use->rule() == rule) return use;
  }
  if (uses_.size() < kMaxCounted) return uses_.emplace_back(std::make_shared<RuleUse>(rule));
  // The element for all other rules is last.
  if (uses_.size() == kMaxCounted) {
    uses_.push_back(std::make_shared<RuleUse>(std::string(kOtherRules)));
  }
  return uses_.back();
}

std::vector<RuleUse::Totals> Trust::uses() const {
  std::vector<RuleUse::Totals> totals;
  MutexLock lock(&uses_mutex_);
  for (const auto& use : uses_) totals.push_back(use->totals());
  return totals;
}

std::shared_ptr<Meter> Trust::MeterOf(const std::string& name) {
  MutexLock lock(&meters_mutex_);
  std::weak_ptr<Meter>& kept = meters_[name];
  std::shared_ptr<Meter> meter = kept.lock();
  if (meter == nullptr) {
    meter = std::make_shared<Meter>();
    kept = meter;
    if (meters_.size() > 2 * kMaxKnown) {
      std::erase_if(meters_, [](const auto& named) { return named.second.expired(); });
    }
  }
  return meter;
}

}  // namespace gemmd
