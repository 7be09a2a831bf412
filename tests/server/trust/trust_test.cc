// SPDX-License-Identifier: Apache-2.0
#include "server/trust/trust.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/server/trust/token_signer.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRules[] = R"({"identities": {
  "batch": {"may": ["multiply"]}, "uid:7": {"may": ["administer"]},
  "spiffe://a/*": {"may": ["tensors"]}, "alice": {"may": ["registry"]}}})";

// The digest of "secret" (printf secret | sha256sum).
constexpr char kSecretHash[] = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

std::string HashOf(const std::string& token) {
  const TextDigest digest = TextDigest::Of(token);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.bytes.data()), 32});
}

class TrustTest : public ::testing::Test {
 protected:
  TrustTest() {
    std::filesystem::create_directory(folder_);
    options_.rules_file = Write("rules.json", kRules);
    options_.tokens_file = Write("tokens", std::string("# Comment.\n\nbatch: ") + kSecretHash);
    options_.jwt_keys_file = Write("keys", R"({"keys":[)" + signer_.PublicKey() + "]}");
    options_.jwt.audience = "gemmd";
  }
  ~TrustTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  std::unique_ptr<Trust> Load() {
    absl::StatusOr<std::unique_ptr<Trust>> trust = Trust::Load(
        options_, [this] { return absl::FromUnixSeconds(now_s_); }, clock_);
    EXPECT_THAT(trust, IsOk());
    return trust.ok() ? *std::move(trust) : nullptr;
  }

  static std::string NameOf(const absl::StatusOr<std::shared_ptr<const Identity>>& identity) {
    return identity.ok() ? (*identity)->name : identity.status().ToString();
  }

  const std::string folder_ = ::testing::TempDir() + "trust_test_" + std::to_string(getpid());
  const TokenSigner signer_{TokenSigner::Kind::kEd25519, "e"};
  TrustOptions options_;
  int64_t now_s_ = 1000;
  FakeClock clock_;
};

TEST_F(TrustTest, KnowsCallersByWhatTheyShow) {
  const auto trust = Load();
  EXPECT_EQ(trust->size(), 4u);
  EXPECT_EQ(NameOf(trust->Identify({.authorization = {"Bearer secret"}})), "batch");
  EXPECT_EQ(NameOf(trust->Identify({.authorization = {"bearer secret"}})), "batch");
  EXPECT_EQ(NameOf(trust->Identify({.names = {"spiffe://b/x", "spiffe://a/x", "host"}})),
            "spiffe://a/x");
  EXPECT_EQ(NameOf(trust->Identify({.user = "uid:7"})), "uid:7");
  const auto stranger = trust->Identify({.names = {"host"}});
  EXPECT_EQ(NameOf(stranger), "host");
  EXPECT_FALSE((*stranger)->grant.roles.Has(Role::kMultiply));
  for (const Evidence& nobody :
       {Evidence{}, Evidence{.user = "uid:8"}, Evidence{.names = {"uid:7", ""}},
        Evidence{.authorization = {"Bearer secret2"}}, Evidence{.authorization = {"Basic secret"}},
        Evidence{.authorization = {"Bearer "}}, Evidence{.authorization = {""}},
        Evidence{.authorization = {"Bearer secret", "Bearer secret"}}}) {
    EXPECT_THAT(trust->Identify(nobody), StatusIs(absl::StatusCode::kUnauthenticated));
  }
  // Other evidence does not replace a bad token.
  EXPECT_THAT(trust->Identify({.authorization = {"Bearer no"}, .names = {"spiffe://a/x"}}),
              Not(IsOk()));
}

TEST_F(TrustTest, RemembersATokenOnlyAsLongAsItIsGood) {
  const auto trust = Load();
  const std::string value =
      "Bearer " + signer_.Sign(R"({"sub":"alice","aud":"gemmd","exp":2000,"nbf":900})");
  for (now_s_ = 1000; now_s_ < 2060; now_s_ += 53) {
    EXPECT_EQ(NameOf(trust->Identify({.authorization = {value}})), "alice") << now_s_;
  }
  now_s_ = 2060;
  EXPECT_THAT(trust->Identify({.authorization = {value}}), Not(IsOk()));
  now_s_ = 100;  // The clock was set back.
  EXPECT_THAT(trust->Identify({.authorization = {value}}), Not(IsOk()));
  EXPECT_EQ(trust->signed_tokens().good, 1);
  // An expired token is not examined again.
  EXPECT_EQ(trust->signed_tokens().bad, 1);
  now_s_ = 1000;
  ASSERT_THAT(trust->Reload(), IsOk());
  EXPECT_EQ(NameOf(trust->Identify({.authorization = {value}})), "alice");
  EXPECT_EQ(trust->signed_tokens().good, 2);
}

// Calls with signed tokens, each with a different one.
class SignedTokensTest : public TrustTest {
 protected:
  using Code = absl::StatusCode;

  std::string GoodToken() {
    return "Bearer " + signer_.Sign(R"({"sub":"alice","aud":"gemmd","exp":2000,"jti":)" +
                                    std::to_string(++tokens_) + "}");
  }

  // The same with an invalid signature.
  Code ShowBad(TokenBucket* bad) {
    std::string token = GoodToken();
    const size_t signature = token.rfind('.') + 1;
    token.replace(signature, 4, token.substr(signature, 4) == "AAAA" ? "BBBB" : "AAAA");
    return Show(token, bad);
  }

  Code Show(const std::string& token, TokenBucket* bad) {
    return trust_->Identify({.authorization = {token}, .bad_tokens = bad}).status().code();
  }

  int ShowBad(int times, TokenBucket* bad) {
    int examined = 0;
    for (int i = 0; i < times; ++i) examined += ShowBad(bad) == Code::kUnauthenticated ? 1 : 0;
    return examined;
  }

  const std::unique_ptr<Trust> trust_ = Load();
  int tokens_ = 0;
};

TEST_F(SignedTokensTest, AConnectionLeavesBadOnesAtOnceAndThenOneASecond) {
  TokenBucket bad;
  const std::string known = GoodToken();
  ASSERT_EQ(Show(known, &bad), Code::kOk);
  EXPECT_EQ(ShowBad(100, &bad), Trust::kBadTokensOfConnection);
  EXPECT_EQ(ShowBad(&bad), Code::kResourceExhausted);
  EXPECT_EQ(trust_->signed_tokens().good, 1);
  EXPECT_EQ(trust_->signed_tokens().bad, Trust::kBadTokensOfConnection);
  EXPECT_EQ(trust_->signed_tokens().unexamined, 101 - Trust::kBadTokensOfConnection);
  // Cached tokens stay valid, and new ones are accepted on other connections.
  EXPECT_EQ(Show(known, &bad), Code::kOk);
  EXPECT_EQ(Show(GoodToken(), &bad), Code::kResourceExhausted);
  TokenBucket other;
  EXPECT_EQ(Show(GoodToken(), &other), Code::kOk);
  EXPECT_EQ(Show("Bearer secret", &bad), Code::kOk);

  clock_.Advance(999'999'999);
  EXPECT_EQ(ShowBad(&bad), Code::kResourceExhausted);
  clock_.Advance(1);
  // Good tokens cost nothing.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Show(GoodToken(), &bad), Code::kOk);
  EXPECT_EQ(ShowBad(10, &bad), 1);
  clock_.Advance(3'600'000'000'000);
  EXPECT_EQ(ShowBad(100, &bad), Trust::kBadTokensOfConnection);
}

TEST_F(SignedTokensTest, ConnectionsWithABadOneShareABound) {
  constexpr int kConnections = 3 * Trust::kBadTokensOfAll;
  std::vector<TokenBucket> buckets(kConnections);
  const auto show_on_each = [&] {
    int examined = 0;
    for (TokenBucket& bad : buckets) examined += ShowBad(1, &bad);
    return examined;
  };
  EXPECT_EQ(show_on_each(), kConnections);  // The first bad token on each.
  EXPECT_EQ(show_on_each(), Trust::kBadTokensOfAll);
  EXPECT_EQ(show_on_each(), 0);
  // A call whose connection is not known is treated like one on a connection with a bad token.
  EXPECT_EQ(Show(GoodToken(), nullptr), Code::kResourceExhausted);
  // A connection without bad tokens is not affected.
  TokenBucket fresh;
  EXPECT_EQ(Show(GoodToken(), &fresh), Code::kOk);
  clock_.Advance(500'000'000);
  EXPECT_EQ(show_on_each(), Trust::kBadTokensOfAll / 2);
  EXPECT_EQ(Show(GoodToken(), &fresh), Code::kOk);
}

TEST_F(TrustTest, ReadsItsFilesAgainAndKeepsThemWhereOneIsBad) {
  const auto trust = Load();
  const auto before = *trust->Identify({.authorization = {"Bearer secret"}});
  Write("rules.json", R"({"identities": {"batch": {"may": []}, "anonymous": {"may": []}}})");
  Write("tokens", "batch: short");
  EXPECT_THAT(trust->Reload(), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("tokens: line 1: got no SHA")));
  EXPECT_EQ(*trust->Identify({.authorization = {"Bearer secret"}}), before);
  Write("tokens", std::string("batch : ") + kSecretHash + "\r\n");
  ASSERT_THAT(trust->Reload(), IsOk());
  const auto after = *trust->Identify({.authorization = {"Bearer secret"}});
  EXPECT_FALSE(after->grant.roles.Has(Role::kMultiply));
  EXPECT_EQ(after->meter, before->meter);
  EXPECT_EQ(NameOf(trust->Identify({.user = "uid:7"})), "anonymous");
  Write("tokens", "");
  ASSERT_THAT(trust->Reload(), IsOk());
  EXPECT_THAT(trust->Identify({.authorization = {"Bearer secret"}}), Not(IsOk()));
}

TEST_F(TrustTest, SaysWhichFileIsBad) {
  const auto refused = [this](const std::string& why) {
    EXPECT_THAT(Trust::Load(options_).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  Write("tokens", std::string("batch: ") + kSecretHash + "\nother: " + kSecretHash);
  refused("line 2: got the hash of an earlier line");
  Write("tokens", std::string("uid:0: ") + kSecretHash);
  refused("a name that no token may have");
  Write("tokens", "word");
  refused("no colon");
  options_.jwt.audience = "";
  refused("jwt-audience");
  options_.jwt.audience = "gemmd";
  options_.rules_file += "x";
  refused("rules: cannot read");
  // Reading a pipe into which nobody writes would block the daemon.
  options_.rules_file = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(options_.rules_file.c_str(), 0600), 0);
  refused("pipe, want a regular file");
}

TEST_F(TrustTest, TheNameOfAFileOfRulesSaysItsForm) {
  for (const char* name : {"rules.yaml", "rules.yml"}) {
    options_.rules_file = Write(name, "identities:\n  uid:7: {may: [multiply]}\n");
    const auto trust = Load();
    ASSERT_NE(trust, nullptr);
    EXPECT_EQ(NameOf(trust->Identify({.user = "uid:7"})), "uid:7");
    Write(name, "identities:\n  uid:7: {may: multiply]}\n");
    EXPECT_THAT(trust->Reload(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rules: line 2, column ")));
    EXPECT_EQ(NameOf(trust->Identify({.user = "uid:7"})), "uid:7");
  }
  options_.rules_file = Write("rules.json", "identities: {}\n");
  EXPECT_THAT(Trust::Load(options_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rules: line 1: got text that is not JSON")));
}

// However many callers come, the daemon caches at most some thousands.
TEST_F(TrustTest, RemembersABoundedNumberOfCallers) {
  Write("rules.json", R"({"identities": {"spiffe://*": {"may": ["multiply"]}}})");
  const auto trust = Load();
  std::vector<std::weak_ptr<const Identity>> seen;
  for (int i = 0; i < 10'000; ++i) {
    const std::string name = "spiffe://" + std::to_string(i);
    const auto caller = trust->Identify({.names = {name}});
    EXPECT_EQ(NameOf(caller), name);
    if (caller.ok()) seen.push_back(*caller);
  }
  EXPECT_LE(
      std::count_if(seen.begin(), seen.end(), [](const auto& caller) { return !caller.expired(); }),
      4096);
}

// Static tokens, which never expire.
TEST_F(TrustTest, RemembersABoundedNumberOfTokens) {
  Write("rules.json", R"({"identities": {"user*": {"may": ["multiply"]}}})");
  std::string tokens;
  for (int i = 0; i < 10'000; ++i) {
    const std::string token = "secret" + std::to_string(i);
    tokens += "user" + std::to_string(i) + ": " + HashOf(token) + "\n";
  }
  Write("tokens", tokens);
  const auto trust = Load();
  std::vector<std::weak_ptr<const Identity>> seen;
  for (int i = 0; i < 10'000; ++i) {
    const std::string token = "Bearer secret" + std::to_string(i);
    const auto caller = trust->Identify({.authorization = {token}});
    EXPECT_EQ(NameOf(caller), "user" + std::to_string(i));
    if (caller.ok()) seen.push_back(*caller);
  }
  // The caches of names and of tokens have this size each.
  EXPECT_LE(
      std::count_if(seen.begin(), seen.end(), [](const auto& caller) { return !caller.expired(); }),
      2 * 4096);
}

TEST_F(TrustTest, CountsByRuleAlsoAcrossItsChanges) {
  const auto trust = Load();
  const auto identify = [&](std::string_view name) { return *trust->Identify({.names = {name}}); };
  EXPECT_EQ(identify("nobody")->use, nullptr);
  EXPECT_THAT(trust->uses(), ::testing::IsEmpty());
  identify("spiffe://a/1")->use->AddAnswer(5);
  identify("alice")->use->AddFailure();
  ASSERT_THAT(trust->Reload(), IsOk());
  identify("spiffe://a/2")->use->AddAnswer(7);
  identify("spiffe://a/2")->use->AddRefusal();
  const std::vector<RuleUse::Totals> uses = trust->uses();
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].rule, "spiffe://a/*");
  EXPECT_EQ(uses[0].answered, 2);
  EXPECT_EQ(uses[0].compute_ns, 12);
  EXPECT_EQ(uses[0].failed, 0);
  EXPECT_EQ(uses[0].refused, 1);
  EXPECT_EQ(uses[1].rule, "alice");
  EXPECT_EQ(uses[1].failed, 1);
}

TEST_F(TrustTest, CountsABoundedNumberOfRules) {
  constexpr size_t kAll = Trust::kMaxCounted + 5;
  std::string rules;
  for (size_t i = 0; i < kAll; ++i) {
    rules +=
        std::string(i == 0 ? "" : ",") + "\"r" + std::to_string(i) + R"(":{"may":["multiply"]})";
  }
  Write("rules.json", R"({"identities": {)" + rules + "}}");
  const auto trust = Load();
  for (int times = 0; times < 2; ++times) {
    for (size_t i = 0; i < kAll; ++i) {
      const std::string name = "r" + std::to_string(i);
      (*trust->Identify({.names = {name}}))->use->AddRefusal();
    }
  }
  const std::vector<RuleUse::Totals> uses = trust->uses();
  ASSERT_EQ(uses.size(), Trust::kMaxCounted + 1);
  for (size_t i = 0; i < Trust::kMaxCounted; ++i) {
    EXPECT_EQ(uses[i].rule, "r" + std::to_string(i));
    EXPECT_EQ(uses[i].refused, 2);
  }
  EXPECT_EQ(uses.back().rule, Trust::kOtherRules);
  EXPECT_EQ(uses.back().refused, 2 * 5);
}

TEST(TextDigestTest, IsSha256) {
  const TextDigest digest = TextDigest::Of("secret");
  const std::optional<TextDigest> known = TextDigest::FromHex(kSecretHash);
  ASSERT_TRUE(known);
  EXPECT_TRUE(digest.Equals(*known));
  EXPECT_FALSE(TextDigest::Of("secreT").Equals(*known));
  EXPECT_FALSE(TextDigest::FromHex(std::string(63, '0')));
  EXPECT_FALSE(TextDigest::FromHex(std::string(63, '0') + "g"));
}

}  // namespace
}  // namespace gemmd
