// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/trust/identity.h"
#include "server/trust/json_text.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kMaxBytes = 4096;

void ExpectValue(const std::string& text, const std::string& want) {
  const auto value = ParseYaml("file", text, kMaxBytes);
  ASSERT_THAT(value, IsOk()) << text;
  EXPECT_EQ(*value, json::parse(want)) << text;
}

void ExpectError(const std::string& text, const std::string& error) {
  EXPECT_THAT(ParseYaml("file", text, kMaxBytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)))
      << text;
}

TEST(YamlTextTest, IsTheJsonThatItStandsFor) {
  ExpectValue("a: 1\nb: [x, 'y', \"z\"]\nc:\n  d: 2.5\n  e:\n  - true\n  - null\n",
              R"({"a": 1, "b": ["x", "y", "z"], "c": {"d": 2.5, "e": [true, null]}})");
  ExpectValue("{\"a\": {\"b\": [1, -2, 1e3]}}", R"({"a": {"b": [1, -2, 1000.0]}})");
  ExpectValue("# comment\n---\n- |\n  two\n  lines\n- >-\n  one\n  line\n...\n",
              R"(["two\nlines\n", "one line"])");
  ExpectValue(
      "\xEF\xBB\xBF"
      "a: \xC3\xA9\n",
      R"({"a": "é"})");
  ExpectValue("a:\nb: ''\nc: ~\n", R"({"a": null, "b": "", "c": "~"})");
  ExpectValue("", "null");
  ExpectValue("[]", "[]");
  ExpectValue("a: {}", R"({"a": {}})");
}

// The Norway problem: scalars that other versions of YAML take for booleans or numbers are strings.
TEST(YamlTextTest, GuessesNoTypes) {
  ExpectValue(
      "[no, yes, on, True, 0x10, 010, 1_000, .5, +1, .inf, 12:30, 2026-01-01, '1', \"true\"]",
      R"(["no", "yes", "on", "True", "0x10", "010", "1_000", ".5", "+1", ".inf", "12:30",
                  "2026-01-01", "1", "true"])");
  ExpectValue("1: {null: 2}", R"({"1": {"null": 2}})");
}

TEST(YamlTextTest, SaysWhereItIsWrong) {
  ExpectError("a: 1\nb: [1, 2\nc: 3\n",
              "file: line 3, column 2: got text that is not YAML, want YAML");
  ExpectError("a:\n\t- 1\n", "file: line 2, column 1: got text that is not YAML");
  ExpectError("a: 1\n  b: 2\n", "file: line 2, column 4: got text that is not YAML");
  ExpectError("a: 1\nb: 2\na: 3\n", "file: line 3, column 1: got a twice, want each name once");
  ExpectError("a: \"\xff\"\n", "file: line 1, column ");
  ExpectError("a: \"\x01\"\n", "file: line 1, column ");
  ExpectError("? [a]\n: 1\n", "file: line 1, column 3: got a name that is not a string, want text");
  ExpectError("? {a: 1}\n: 1\n", "file: line 1, column 3: got a name that is not a string");
  ExpectError("a: 1\n---\nb: 2\n", "file: line 2, column 1: got a second document, want one");
  ExpectError("a: !!int 1\n", "file: line 1, column 4: got a tag, want none");
  ExpectError("a: !x [1]\n", "got a tag");
  ExpectError("!x {a: 1}\n", "got a tag");
}

// A few lines with these can expand to gigabytes.
TEST(YamlTextTest, TakesNoAnchorsAndNoAliases) {
  ExpectError("a: &x [1]\n", "file: line 1, column 4: got an anchor, want none");
  ExpectError("a: &x 1\n", "got an anchor");
  ExpectError("a: &x {b: 1}\n", "got an anchor");
  ExpectError("a: *x\n", "file: line 1, column 4: got an alias, want its value");
  ExpectError("<<: *x\n", "got an alias");
}

TEST(YamlTextTest, IsBounded) {
  ExpectValue(std::string(8, '[') + std::string(8, ']'), "[[[[[[[[]]]]]]]]");
  for (const std::string& deep :
       {std::string(9, '['), std::string(kMaxBytes, '['),
        std::string("{a: {a: {a: {a: {a: {a: {a: {a: {a: 1"), std::string("- - - - - - - - - 1")}) {
    ExpectError(deep, "got more than 8 levels, want fewer");
  }
  ExpectError(std::string(kMaxBytes + 1, ' '), "file: got 4097 bytes, want at most 4096");
}

// A text that takes the parser the longest.
void ParseSlowText(size_t bytes) {
  std::string many = "a: [";
  while (many.size() < bytes - 8) many += "1,? ";
  EXPECT_THAT(ParseYaml("file", many, Rules::kMaxBytes), Not(IsOk()));
  std::string keys;
  for (size_t i = 0; keys.size() < bytes - 20; ++i) keys += "k" + std::to_string(i) + ": {a: b}\n";
  EXPECT_THAT(ParseYaml("file", keys, Rules::kMaxBytes), IsOk());
}

TEST(YamlTextTest, ReadsWhatTakesTheParserLong) { ParseSlowText(size_t{32} << 10); }

// Must end soon.
TEST(YamlTextExhaustive, ReadsAMegabyteOfWhatTakesTheParserLong) {
  ParseSlowText(Rules::kMaxBytes);
}

TEST(RulesInYamlTest, MeanWhatTheyMeanInJson) {
  const auto rules = Rules::Parse(
      "identities:\n"
      "  batch:\n"
      "    may: [multiply]\n"
      "    priority: low\n"
      "    requests: 16\n"
      "  spiffe://corp/team/*:\n"
      "    may:\n"
      "    - multiply\n"
      "    - tensors\n"
      "    devices: [cpu, \"cuda:0\"]\n"
      "  uid:0: {may: [administer]}\n",
      Rules::Format::kYaml);
  ASSERT_THAT(rules, IsOk());
  EXPECT_EQ(rules->size(), 3u);
  EXPECT_TRUE(rules->Find("batch")->is_low_priority);
  EXPECT_EQ(rules->Find("batch")->in_flight.requests, 16);
  EXPECT_TRUE(rules->Find("spiffe://corp/team/x")->roles.Has(Role::kTensors));
  EXPECT_FALSE(rules->Find("spiffe://corp/team/x")->MayUse("sim:sm_90"));
  EXPECT_TRUE(rules->Find("uid:0")->roles.Has(Role::kAdminister));
  EXPECT_THAT(Rules::Parse("identities:\n  batch: {may: [], requests: no}\n", Rules::Format::kYaml),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "rules: identities.batch.requests: got \"no\", want an integer from 1 to "
                       "9007199254740992"));
  EXPECT_THAT(
      Rules::Parse("", Rules::Format::kYaml),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rules: file: got no object")));
}

}  // namespace
}  // namespace gemmd
