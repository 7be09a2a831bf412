// SPDX-License-Identifier: Apache-2.0
#include "server/trust/web_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/server/trust/token_signer.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Kind = TokenSigner::Kind;

constexpr int64_t kNow = 1'800'000'000;

std::string SetOf(const std::string& keys) { return R"({"keys":[)" + keys + "]}"; }

class WebTokenTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    rsa_ = new TokenSigner(Kind::kRsa, "r");
    p256_ = new TokenSigner(Kind::kP256, "p");
    ed_ = new TokenSigner(Kind::kEd25519, "e");
  }
  static void TearDownTestSuite() {
    delete rsa_;
    delete p256_;
    delete ed_;
  }

  WebTokenTest()
      : keys_(*SigningKeys::Parse(
            SetOf(rsa_->PublicKey() + "," + p256_->PublicKey() + "," + ed_->PublicKey()))) {}

  static std::string Claims(const std::string& more, int64_t ends_s = kNow + 100) {
    return R"({"sub":"alice","aud":"gemmd","exp":)" + std::to_string(ends_s) + more + "}";
  }

  absl::Status Verify(const std::string& token, int64_t now_s = kNow) {
    return VerifyWebToken(token, keys_, rules_, now_s).status();
  }
  void ExpectRefusal(const std::string& token, const std::string& why) {
    EXPECT_THAT(Verify(token), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr(why)))
        << token;
  }

  static TokenSigner* rsa_;
  static TokenSigner* p256_;
  static TokenSigner* ed_;
  const SigningKeys keys_;
  WebTokenRules rules_ = {.audience = "gemmd", .issuer = "", .clock_skew_s = 60};
};

TokenSigner* WebTokenTest::rsa_ = nullptr;
TokenSigner* WebTokenTest::p256_ = nullptr;
TokenSigner* WebTokenTest::ed_ = nullptr;

TEST_F(WebTokenTest, TakesThreeAlgorithms) {
  for (const TokenSigner* const signer : {rsa_, p256_, ed_}) {
    const absl::StatusOr<WebToken> token =
        VerifyWebToken(signer->Sign(Claims("")), keys_, rules_, kNow);
    ASSERT_THAT(token, IsOk()) << signer->algorithm();
    EXPECT_EQ(token->name, "alice");
    EXPECT_TRUE(token->IsGoodAt(kNow + 159));
    EXPECT_FALSE(token->IsGoodAt(kNow + 160));
    // Without a key id, the only key of the algorithm is used.
    EXPECT_THAT(Verify(signer->Sign(R"({"alg":")" + signer->algorithm() + "\"}", Claims(""))),
                IsOk());
  }
  EXPECT_THAT(Verify(ed_->Sign(R"({"sub":"a","aud":["x","gemmd"],"exp":1800000100.9})")), IsOk());
}

TEST_F(WebTokenTest, RefusesEveryChangedByte) {
  for (const TokenSigner* const signer : {rsa_, p256_, ed_}) {
    const std::string token = signer->Sign(Claims(""));
    for (size_t i = 0; i < token.size(); ++i) {
      std::string changed = token;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      EXPECT_THAT(Verify(changed), StatusIs(absl::StatusCode::kUnauthenticated)) << i;
    }
    for (size_t size = 0; size < token.size(); ++size) {
      EXPECT_THAT(Verify(token.substr(0, size)), StatusIs(absl::StatusCode::kUnauthenticated));
    }
  }
}

TEST_F(WebTokenTest, RefusesOtherAlgorithmsAndKeys) {
  const std::string claims = Claims("");
  for (const char* name : {"none", "None", "HS256", "RS384", "PS256", "ES384", ""}) {
    ExpectRefusal(ed_->Sign(R"({"alg":")" + std::string(name) + R"(","kid":"e"})", claims),
                  "algorithm");
  }
  ExpectRefusal(ToBase64Url(R"({"alg":"none"})") + "." + ToBase64Url(claims) + ".", "algorithm");
  ExpectRefusal(ed_->Sign(R"({"kid":"e"})", claims), "algorithm");
  ExpectRefusal(ed_->Sign(R"({"alg":5,"kid":"e"})", claims), "algorithm");
  ExpectRefusal(ed_->Sign(R"({"alg":"EdDSA","kid":"r"})", claims), "no key");
  ExpectRefusal(ed_->Sign(R"({"alg":"EdDSA","kid":"unknown"})", claims), "no key");
  ExpectRefusal(ed_->Sign(R"({"alg":"RS256","kid":"e"})", claims), "no key");
  ExpectRefusal(ed_->Sign(R"({"alg":"EdDSA","kid":7})", claims), "not a string");
  ExpectRefusal(ed_->Sign(R"({"alg":"EdDSA","crit":["exp"]})", claims), "critical extensions");
  ExpectRefusal(TokenSigner(Kind::kEd25519, "e").Sign(claims), "no key");
}

TEST_F(WebTokenTest, ATokenWithoutAnIdOfAKeyIsNobodysWhereSeveralMayHaveSignedIt) {
  const TokenSigner second(Kind::kEd25519, "second");
  const auto both = SigningKeys::Parse(SetOf(ed_->PublicKey() + "," + second.PublicKey()));
  ASSERT_THAT(both, IsOk());
  for (const TokenSigner* const signer : {static_cast<const TokenSigner*>(ed_), &second}) {
    EXPECT_THAT(VerifyWebToken(signer->Sign(Claims("")), *both, rules_, kNow).status(), IsOk());
    EXPECT_THAT(VerifyWebToken(signer->Sign(R"({"alg":"EdDSA"})", Claims("")), *both, rules_, kNow)
                    .status(),
                StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("no key")));
  }
}

TEST_F(WebTokenTest, HoldsTheTimesWithTheSkewOfClocksAndNoMore) {
  const std::string expired = ed_->Sign(Claims("", kNow - 59));
  EXPECT_THAT(Verify(expired), IsOk());
  EXPECT_THAT(Verify(expired, kNow + 1), Not(IsOk()));
  const std::string early = ed_->Sign(Claims(R"(,"nbf":)" + std::to_string(kNow + 60)));
  EXPECT_THAT(Verify(early), IsOk());
  EXPECT_THAT(Verify(early, kNow - 1), Not(IsOk()));
  rules_.clock_skew_s = 0;
  ExpectRefusal(ed_->Sign(Claims("", kNow)), "expired");
  ExpectRefusal(ed_->Sign(Claims(R"(,"nbf":1800000001)")), "not valid yet");
  ExpectRefusal(ed_->Sign(Claims(R"(,"nbf":"now")")), "not a time");
  for (const char* exp : {"-1", "1e300", "\"1800000100\"", "null"}) {
    ExpectRefusal(ed_->Sign(std::string(R"({"sub":"a","aud":"gemmd","exp":)") + exp + "}"),
                  "no expiry time");
  }
  ExpectRefusal(ed_->Sign(R"({"sub":"a","aud":"gemmd"})"), "no expiry time");
}

TEST_F(WebTokenTest, IsForThisServerAndNamesACaller) {
  const auto with = [](const std::string& members) {
    return ed_->Sign(R"({"exp":1800000100)" + members + "}");
  };
  ExpectRefusal(with(R"(,"sub":"a","aud":"other")"), "audience");
  ExpectRefusal(with(R"(,"sub":"a","aud":[])"), "audience");
  ExpectRefusal(with(R"(,"sub":"a","aud":["other","gemmd2"])"), "audience");
  ExpectRefusal(with(R"(,"sub":"a","aud":{"gemmd":1})"), "audience");
  ExpectRefusal(with(R"(,"sub":"a")"), "audience");
  ExpectRefusal(with(R"(,"aud":"gemmd")"), "no subject");
  for (const char* name : {"", "uid:0", "anonymous", "a b", "a\\nb"}) {
    ExpectRefusal(with(std::string(R"(,"aud":"gemmd","sub":")") + name + "\""), "not a valid name");
  }
  rules_.issuer = "https://issuer";
  ExpectRefusal(ed_->Sign(Claims("")), "issuer");
  ExpectRefusal(ed_->Sign(Claims(R"(,"iss":"https://issuer2")")), "issuer");
  EXPECT_THAT(Verify(ed_->Sign(Claims(R"(,"iss":"https://issuer")"))), IsOk());
}

TEST_F(WebTokenTest, IsBounded) {
  ExpectRefusal(ed_->Sign(Claims(R"(,"x":")" + std::string(kMaxWebTokenBytes, 'x') + "\"")),
                "too long");
  ExpectRefusal(ed_->Sign(Claims(R"(,"x":[[[[[[[[[[]]]]]]]]]])")), "not a JSON object");
  ExpectRefusal(ed_->Sign(Claims(R"(,"sub":"bob")")), "not a JSON object");
}

TEST_F(WebTokenTest, SetsOfKeysHavePublicKeysOnly) {
  const auto refused = [](const std::string& keys, const std::string& why) {
    EXPECT_THAT(SigningKeys::Parse(SetOf(keys)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << keys;
  };
  refused("", "none for RS256");
  refused("5", "keys[0]: got no object");
  refused(R"({"kty":"oct","k":"c2VjcmV0"})", "private or symmetric");
  std::string with_private = ed_->PublicKey();
  with_private.insert(1, R"("d":"AAAA",)");
  refused(with_private, "private or symmetric");
  refused(R"({"kty":"RSA","n":"AQAB","e":"AQAB"})", "17 bits");
  refused(R"({"kty":"EC","crv":"P-256","x":"AAAA","y":"AAAA"})", "no key");
  refused(R"({"kty":"OKP","crv":"Ed25519","x":"AA=="})", "no base64url");
  refused(R"({"kty":"EC","crv":"P-384"},{"kty":"RSA","use":"enc"})", "none for RS256");
  std::string weak = rsa_->PublicKey();
  weak.replace(weak.find(R"("e":")"), std::string(R"("e":"AQAB")").size(), R"("e":"AAE")");
  refused(weak, "no key");
  EXPECT_THAT(SigningKeys::Parse("{}").status(), Not(IsOk()));
}

TEST_F(WebTokenTest, ABadKeyOfASetIsLeftOut) {
  std::string with_private = TokenSigner(Kind::kEd25519, "x").PublicKey();
  with_private.insert(1, R"("d":"AAAA",)");
  const TokenSigner second(Kind::kEd25519, "e");
  const std::pair<std::string, const char*> bad_keys[] = {
      {"5", "got no object"},
      {R"({"kty":"oct","k":"c2VjcmV0"})", "got a private or symmetric key"},
      {with_private, "got a private or symmetric key"},
      {R"({"kty":"RSA","n":"AQAB","e":"AQAB"})", ".n: got 17 bits"},
      {R"({"kty":"RSA","e":"AQAB"})", ".n: got no base64url"},
      {R"({"kty":"RSA","n":5,"e":"AQAB"})", ".n: got no base64url"},
      {R"({"kty":"OKP","crv":"Ed25519"})", ".x: got no base64url"},
      {R"({"kty":"EC","crv":"P-256","x":"AAAA","y":"AAAA"})", "no key"},
      {R"({"kty":"OKP","crv":"Ed25519","kid":7,"x":"AA"})", ".kid: got no text"},
      {second.PublicKey(), ".kid: got a kid that an earlier key has"},
  };
  for (const auto& [bad, why] : bad_keys) {
    // Of two keys with the same kid, only the second is bad.
    const bool is_second = bad == second.PublicKey();
    for (const bool is_first : {true, false}) {
      if (is_first && is_second) continue;
      const std::string set = is_first ? bad + "," + ed_->PublicKey() + "," + rsa_->PublicKey()
                                       : ed_->PublicKey() + "," + bad + "," + rsa_->PublicKey();
      const auto keys = SigningKeys::Parse(SetOf(set));
      ASSERT_THAT(keys, IsOk()) << bad;
      const std::string field = is_first ? "keys[0]" : "keys[1]";
      EXPECT_THAT(keys->left_out(), ElementsAre(AllOf(StartsWith(field), HasSubstr(why))));
      for (const TokenSigner* const signer : {ed_, rsa_}) {
        EXPECT_THAT(VerifyWebToken(signer->Sign(Claims("")), *keys, rules_, kNow).status(), IsOk());
      }
      EXPECT_THAT(VerifyWebToken(second.Sign(Claims("")), *keys, rules_, kNow).status(),
                  Not(IsOk()));
    }
  }
}

TEST_F(WebTokenTest, KeysOfTwoAlgorithmsMayHaveTheSameId) {
  const TokenSigner rsa(Kind::kRsa, "same");
  const TokenSigner ed(Kind::kEd25519, "same");
  const auto keys = SigningKeys::Parse(SetOf(rsa.PublicKey() + "," + ed.PublicKey()));
  ASSERT_THAT(keys, IsOk());
  EXPECT_THAT(keys->left_out(), IsEmpty());
  for (const TokenSigner* const signer : {&rsa, &ed}) {
    EXPECT_THAT(VerifyWebToken(signer->Sign(Claims("")), *keys, rules_, kNow).status(), IsOk());
  }
}

TEST(Base64UrlTest, TakesOneFormOfEachText) {
  EXPECT_EQ(FromBase64Url(""), "");
  EXPECT_EQ(FromBase64Url("Zg"), "f");
  EXPECT_EQ(FromBase64Url("Zm8"), "fo");
  EXPECT_EQ(FromBase64Url("Zm9v"), "foo");
  EXPECT_EQ(FromBase64Url("-_8"), "\xFB\xFF");
  for (const char* text : {"Z", "Zh", "Zm9", "Zg==", "Zm9v\n", "Z m8", "Zm+v", "Zm/v", "Zm9vZ"}) {
    EXPECT_EQ(FromBase64Url(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace gemmd
