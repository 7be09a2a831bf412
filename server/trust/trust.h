// SPDX-License-Identifier: Apache-2.0
//
// Who a caller is, by what it shows, and what the rules give to it. Rules, tokens and keys come
// from files, which may be read again while calls go on.
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
#include "server/trust/identity.h"
#include "server/trust/web_token.h"

namespace gemmd {

// SHA-256 of a short secret, by which it is known without being kept.
struct TextDigest {
  std::array<uint8_t, 32> bytes = {};

  static TextDigest Of(std::string_view text);

  // Nothing where there are not exactly 64 hexadecimal digits.
  static std::optional<TextDigest> FromHex(std::string_view digits);

  // Takes the same time wherever the two differ.
  bool Equals(const TextDigest& other) const;

  // Eight bytes of it, to find it by.
  uint64_t Key() const {
    uint64_t key = 0;
    std::memcpy(&key, bytes.data(), sizeof(key));
    return key;
  }
};

// Tokens that never change, known by their hashes alone. One identity may have several, so that a
// token can be replaced without a gap.
class TokenHashes {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 20;

  // A line for each token: "IDENTITY: SHA-256 in hexadecimal digits". Empty lines, and those that
  // begin with #, are left out.
  // Errors: InvalidArgument, which names the line and repeats no hash.
  static absl::StatusOr<TokenHashes> Parse(std::string_view text);

  // Whose token has this digest; nothing where nobody's has.
  std::optional<std::string> Find(const TextDigest& digest) const;

 private:
  struct Known {
    TextDigest digest;
    std::string name;
  };
  std::unordered_multimap<uint64_t, Known> by_key_;
};

struct TrustOptions {
  std::string rules_file;     // There are no rules where it is empty.
  std::string tokens_file;    // Hashes of tokens; empty where there are none.
  std::string jwt_keys_file;  // A set of public keys; empty where no signed tokens are taken.
  WebTokenRules jwt;
};

// What a connection, or all of them together, owes for signed tokens that were examined and not
// good: the steady time at which all is paid; 0 if there was no such token. Threads read and write
// it through std::atomic_ref. It is plain bytes because gRPC keeps that of a connection.
struct TokenDebt {
  int64_t until_ns = 0;
};

// What a caller shows. Borrows the texts and the debt.
struct Evidence {
  std::vector<std::string_view> authorization = {};  // The values of that metadata.
  std::vector<std::string_view> names = {};          // Those in its certificate: URIs, then hosts.
  std::string_view user = {};  // Who opened a unix socket: "uid:1000"; otherwise empty.
  TokenDebt* debt = nullptr;   // That of its connection; null if that is not known.
};

// Signed tokens that were not remembered, by what became of them.
struct SignedTokenCounts {
  int64_t good = 0;
  int64_t bad = 0;
  int64_t unexamined = 0;  // Refused because of the bad ones before them.
};

class Trust {
 public:
  using WallClock = std::function<absl::Time()>;

  // The examination of a signed token takes 0.05 to 0.5 ms of a processor, and anybody can ask for
  // one. A connection that has shown no bad token has all of its tokens examined. Any other may
  // show kBadTokensOfConnection bad ones at once and one more each second, and all of those
  // together kBadTokensOfAll at once and each second. Beyond that, tokens that are not remembered
  // are refused unexamined. Each of gRPC's threads may exceed the bounds by one token.
  static constexpr int64_t kBadTokensOfConnection = 8;
  static constexpr int64_t kBadTokensOfAll = 100;

  // Borrows the clock. Errors: InvalidArgument, which names the option or the file, and what is
  // wrong.
  static absl::StatusOr<std::unique_ptr<Trust>> Load(TrustOptions options,
                                                     WallClock now = absl::Now,
                                                     const Clock& clock = Steady());
  ~Trust();

  // Reads the files again. Where one of them is bad, everything stays as it was. Callers are held
  // to the new rules from their next call on, and what they have under way still counts.
  // Errors: as Load. Threads: any.
  absl::Status Reload() ABSL_LOCKS_EXCLUDED(mutex_);

  // A bearer token stands above a certificate, and that above the user of a unix socket; a bad
  // token is never made good by them. Whoever shows nothing is `anonymous`.
  //
  // Errors: Unauthenticated, with a reason that is not for the caller: it would help to guess;
  // ResourceExhausted for a signed token that was not examined. Threads: any.
  absl::StatusOr<std::shared_ptr<const Identity>> Identify(const Evidence& evidence)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Threads: any.
  SignedTokenCounts signed_tokens() const;

  // How many identities and patterns the rules name.
  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

  // What is wrong with each key of --jwt-keys that counts for nothing (SigningKeys::left_out).
  std::vector<std::string> left_out_keys() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The first rules that had a caller, up to this number, are counted one by one, and all others
  // together: each has metrics of its own, and rules may be read again with other names.
  static constexpr size_t kMaxCounted = 48;
  static constexpr std::string_view kOtherRules = "other rules";

  // What callers had, by rule, in the order in which rules had their first one. Threads: any.
  std::vector<RuleUse::Totals> uses() const ABSL_LOCKS_EXCLUDED(uses_mutex_);

 private:
  class Snapshot;

  Trust(TrustOptions options, WallClock now, const Clock& clock)
      : options_(std::move(options)), now_(std::move(now)), clock_(clock) {}
  static const Clock& Steady();
  absl::StatusOr<WebToken> Examine(std::string_view token, const SigningKeys& keys, TokenDebt* debt,
                                   int64_t now_s);
  absl::StatusOr<std::shared_ptr<Snapshot>> Read();
  std::shared_ptr<Meter> MeterOf(const std::string& name) ABSL_LOCKS_EXCLUDED(meters_mutex_);
  std::shared_ptr<RuleUse> UseOf(const std::string& rule) ABSL_LOCKS_EXCLUDED(uses_mutex_);
  std::shared_ptr<Snapshot> now() const ABSL_LOCKS_EXCLUDED(mutex_);

  const TrustOptions options_;
  const WallClock now_;
  const Clock& clock_;
  TokenDebt debt_of_all_;
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
