// SPDX-License-Identifier: Apache-2.0
//
// Identifies a caller by the evidence that it shows, and finds what the rules grant to it. Rules,
// tokens and keys come from files, which may be read again while calls are in progress.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/token_bucket.h"
#include "server/trust/identity.h"
#include "server/trust/web_token.h"

namespace gemmd {

// SHA-256 of a short secret, which allows recognizing the secret without storing it.
struct TextDigest {
  std::array<uint8_t, 32> bytes = {};

  static TextDigest Of(std::string_view text);

  // nullopt unless there are exactly 64 hexadecimal digits.
  static std::optional<TextDigest> FromHex(std::string_view digits);

  // Takes the same time wherever the digests differ.
  bool Equals(const TextDigest& other) const;

  // Eight bytes of the digest, as a key for look-ups.
  uint64_t Key() const {
    uint64_t key = 0;
    std::memcpy(&key, bytes.data(), sizeof(key));
    return key;
  }
};

// Constant tokens, stored only as hashes. An identity may have several tokens, so that one can be
// replaced without an interruption.
class TokenHashes {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  // One line per token: "IDENTITY: SHA-256 in hexadecimal digits". Empty lines and lines that begin
  // with # are skipped. Errors: InvalidArgument, naming the line and repeating no hash.
  static absl::StatusOr<TokenHashes> Parse(std::string_view text);

  // The identity whose token has this digest, or nullopt.
  std::optional<std::string> Find(const TextDigest& digest) const;

 private:
  struct Known {
    TextDigest digest;
    std::string name;
  };
  std::unordered_multimap<uint64_t, Known> by_key_;
};

struct TrustOptions {
  std::string rules_file;     // If empty, there are no rules.
  std::string tokens_file;    // Hashes of tokens; may be empty.
  std::string jwt_keys_file;  // A set of public keys; if empty, no signed tokens are accepted.
  WebTokenRules jwt;
};

// What a caller shows of its identity. Borrows the texts and the bucket.
struct Evidence {
  std::vector<std::string_view> authorization = {};  // The values of the `authorization` metadata.
  std::vector<std::string_view> names = {};          // Names in its certificate: URIs, then hosts.
  std::string_view user = {};  // The user who opened a unix socket: "uid:1000"; otherwise empty.
  TokenBucket* bad_tokens = nullptr;  // Of its connection; null if that is not known.
};

// Signed tokens that were not in the cache, by result.
struct SignedTokenCounts {
  int64_t good = 0;
  int64_t bad = 0;
  int64_t unexamined = 0;  // Refused without examination because of earlier bad tokens.
};

class Trust {
 public:
  using WallClock = std::function<absl::Time()>;

  // Examining a signed token takes 0.05 to 0.5 ms of processor time, and any peer can cause it. All
  // tokens of a connection that has shown no bad token are examined. A connection that has shown
  // one may show kBadTokensOfConnection bad tokens at once and one more each second, and all such
  // connections together kBadTokensOfAll at once and as many each second. Beyond these limits,
  // tokens that are not in the cache are refused without examination. Each of gRPC's threads may
  // exceed the limits by one token.
  static constexpr int64_t kBadTokensOfConnection = 8;
  static constexpr int64_t kBadTokensOfAll = 100;

  // Borrows the clock. Errors: InvalidArgument, naming the option or the file, and the fault.
  static absl::StatusOr<std::unique_ptr<Trust>> Load(TrustOptions options,
                                                     WallClock now = absl::Now,
                                                     const Clock& clock = Steady());
  ~Trust();

  // Reads the files again. If one of them is invalid, nothing changes. The new rules apply from
  // each caller's next call on, and products in progress still count. Errors: as Load. Threads:
  // any.
  absl::Status Reload() ABSL_LOCKS_EXCLUDED(mutex_);

  // A bearer token takes precedence over a certificate, and a certificate over the user of a unix
  // socket; none of the others replaces a bad token. A caller that shows nothing is `anonymous`.
  //
  // Errors: Unauthenticated, with a reason that must not be sent to the caller, as it would help
  // guessing; ResourceExhausted for a signed token that was not examined. Threads: any.
  absl::StatusOr<std::shared_ptr<const Identity>> Identify(const Evidence& evidence)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Threads: any.
  SignedTokenCounts signed_tokens() const;

  // The number of identities and patterns in the rules.
  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

  // For each unusable key of --jwt-keys, what is wrong with it (SigningKeys::left_out).
  std::vector<std::string> left_out_keys() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The first kMaxCounted rules that have a caller are counted each on its own, all others
  // together: each has its own metrics, and reloaded rules may bring ever new names.
  static constexpr size_t kMaxCounted = 48;
  static constexpr std::string_view kOtherRules = "other rules";

  // What callers used, by rule, in the order in which the rules had their first caller. Threads:
  // any.
  std::vector<RuleUse::Totals> uses() const ABSL_LOCKS_EXCLUDED(uses_mutex_);

 private:
  class Snapshot;

  Trust(TrustOptions options, WallClock now, const Clock& clock)
      : options_(std::move(options)), now_(std::move(now)), clock_(clock) {}
  static const Clock& Steady();
  absl::StatusOr<WebToken> Examine(std::string_view token, const SigningKeys& keys,
                                   TokenBucket* bad, int64_t now_s);
  absl::StatusOr<std::shared_ptr<Snapshot>> Read();
  std::shared_ptr<Meter> MeterOf(const std::string& name) ABSL_LOCKS_EXCLUDED(meters_mutex_);
  std::shared_ptr<RuleUse> UseOf(const std::string& rule) ABSL_LOCKS_EXCLUDED(uses_mutex_);
  std::shared_ptr<Snapshot> now() const ABSL_LOCKS_EXCLUDED(mutex_);

  const TrustOptions options_;
  const WallClock now_;
  const Clock& clock_;
  TokenBucket bad_of_all_;
  std::atomic<int64_t> good_tokens_ = 0;
  std::atomic<int64_t> bad_tokens_ = 0;
  std::atomic<int64_t> unexamined_tokens_ = 0;
  mutable Mutex mutex_;
  std::shared_ptr<Snapshot> snapshot_ ABSL_GUARDED_BY(mutex_);
  Mutex meters_mutex_;
  std::map<std::string, std::weak_ptr<Meter>> meters_ ABSL_GUARDED_BY(meters_mutex_);
  mutable Mutex uses_mutex_;
  std::vector<std::shared_ptr<RuleUse>> uses_ ABSL_GUARDED_BY(uses_mutex_);
};

}  // namespace gemmd
