// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/trust/identity.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WithMember(const std::string& member) {
  return R"({"identities": {"batch": {"may": [])" + (member.empty() ? "" : ", " + member) + "}}}";
}

TEST(RulesTest, ReadEveryMember) {
  const absl::StatusOr<Rules> rules = Rules::Parse(R"({"identities": {
    "batch": {"may": ["multiply", "statistics"], "priority": "low", "requests": 16,
              "bytes": 1048576, "device_seconds_a_minute": 1.5, "tensor_bytes": 7,
              "device_tensor_bytes": 9, "share": 2.5,
              "message_bytes": 4096, "devices": ["cpu", "cuda:0"]},
    "plain": {"may": ["administer"]}}})");
  ASSERT_THAT(rules, IsOk());
  const Grant* const batch = rules->Find("batch");
  ASSERT_NE(batch, nullptr);
  EXPECT_TRUE(batch->roles.Has(Role::kMultiply));
  EXPECT_TRUE(batch->roles.Has(Role::kStatistics));
  EXPECT_FALSE(batch->roles.Has(Role::kTensors));
  EXPECT_FALSE(batch->roles.Has(Role::kAdminister));
  EXPECT_TRUE(batch->is_low_priority);
  EXPECT_EQ(batch->in_flight.requests, 16);
  EXPECT_EQ(batch->in_flight.bytes, 1 << 20);
  EXPECT_EQ(batch->in_flight.device_ns_a_minute, 1'500'000'000);
  EXPECT_EQ(batch->tensor_bytes, 7);
  EXPECT_EQ(batch->device_tensor_bytes, 9);
  EXPECT_EQ(batch->share, 2.5);
  EXPECT_EQ(batch->message_bytes, 4096);
  EXPECT_THAT(batch->devices, ElementsAre("cpu", "cuda:0"));
  EXPECT_TRUE(batch->MayUse("cpu"));
  EXPECT_FALSE(batch->MayUse("cuda:1"));
  const Grant* const plain = rules->Find("plain");
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(plain->in_flight.requests, kNoBound);
  EXPECT_EQ(plain->share, 1);
  EXPECT_TRUE(plain->MayUse("anything"));
  EXPECT_EQ(rules->Find("somebody"), nullptr);
}

TEST(RulesTest, TakeTheNameItselfThenTheLongestPattern) {
  const absl::StatusOr<Rules> rules = Rules::Parse(R"({"identities": {
    "spiffe://a/*": {"may": [], "requests": 1},
    "spiffe://a/team/*": {"may": [], "requests": 2},
    "spiffe://a/team/one": {"may": [], "requests": 3}}})");
  ASSERT_THAT(rules, IsOk());
  EXPECT_EQ(rules->Find("spiffe://a/team/one")->in_flight.requests, 3);
  EXPECT_EQ(rules->Find("spiffe://a/team/two")->in_flight.requests, 2);
  EXPECT_EQ(rules->Find("spiffe://a/other")->in_flight.requests, 1);
  EXPECT_EQ(rules->Find("spiffe://b/other"), nullptr);
  EXPECT_EQ(rules->Find("spiffe://a/")->in_flight.requests, 1);
  EXPECT_EQ(rules->Find("spiffe://a"), nullptr);
}

TEST(RulesTest, RefuseWhatTheyDoNotKnowAndSayWhere) {
  const struct {
    std::string text;
    std::string error;
  } cases[] = {
      {"", "rules: line 1: got text that is not JSON"},
      {"{\n\"identities\": {\n]}", "rules: line 3: "},
      {"[]", "rules: file: got no object"},
      {"{}", "rules: identities: got nothing"},
      {R"({"identities": []})", "rules: identities: got []"},
      {R"({"identities": {}, "roles": {}})", "rules: roles: got an unknown name"},
      {R"({"identities": {"a": {"may": []}, "a": {"may": []}}})",
       "rules: identities.a: got it twice"},
      {R"({"identities": {"b": {}, "a": {"may": [{}, [], 0], "share": 1, "share": 2}}})",
       "rules: identities.a.share: got it twice"},
      {R"({"identities": {"a": {}}})", "rules: identities.a: got no \"may\""},
      {R"({"identities": {"a": 5}})", "rules: identities.a: got 5, want an object"},
      {R"({"identities": {"": {"may": []}}})", "got no name"},
      {R"({"identities": {"*": {"may": []}}})", "got no name"},
      {R"({"identities": {"a*b": {"may": []}}})", "got no name"},
      {R"({"identities": {"a b": {"may": []}}})", "got no name"},
      {R"({"identities": {"a": {"may": "multiply"}}})", "want a list of multiply"},
      {R"({"identities": {"a": {"may": ["Multiply"]}}})", "got \"Multiply\", want a list"},
      {R"({"identities": {"a": {"may": ["tensors", "tensors"]}}})", "want each role once"},
      {WithMember(R"("shares": 2)"), "identities.batch.shares: got an unknown name"},
      {WithMember(R"("share": 0)"),
       "identities.batch.share: got 0, want a number from 0.01 to 100"},
      {WithMember(R"("share": 100.5)"), "got 100.5"},
      {WithMember(R"("share": "2")"), "got \"2\""},
      {WithMember(R"("device_tensor_bytes": 0)"), "batch.device_tensor_bytes: got 0"},
      {WithMember(R"("requests": 0)"),
       "identities.batch.requests: got 0, want an integer from 1 to 9007199254740992"},
      {WithMember(R"("requests": 9007199254740993)"), "got 9007199254740993"},
      {WithMember(R"("requests": "2")"), "got \"2\""},
      {WithMember(R"("requests": 1.5)"), "got 1.5"},
      {WithMember(R"("requests": -1)"), "got -1"},
      {WithMember(R"("bytes": 18446744073709551615)"), "got 18446744073709551615"},
      {WithMember(R"("bytes": 1e400)"), "line 1"},
      {WithMember(R"("priority": "high")"), "want normal or low"},
      {WithMember(R"("devices": [])"), "want a list of names"},
      {WithMember(R"("devices": [1])"), "got 1"},
      {WithMember(R"("device_seconds_a_minute": 0)"), "want a number from 0.001"},
      {WithMember(R"("device_seconds_a_minute": true)"), "got true"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(Rules::Parse(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)))
        << text;
  }
}

TEST(RulesTest, AreBoundedInLengthAndDepth) {
  EXPECT_THAT(Rules::Parse(std::string(Rules::kMaxBytes + 1, ' ')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("want at most")));
  EXPECT_THAT(Rules::Parse(std::string(100'000, '[')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("levels")));
}

}  // namespace
}  // namespace gemmd
