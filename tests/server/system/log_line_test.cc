// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/system/log.h"

namespace gemmd {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string Json(std::string_view pairs) {
  return FormatLine(LogFormat::kJson, absl::UnixEpoch(), "info", pairs);
}

TEST(LogLineTest, TextIsThePairsAfterTimeAndLevel) {
  const std::string line = FormatLine(LogFormat::kText, absl::UnixEpoch(), "info", "event=serving");
  EXPECT_THAT(line, StartsWith("time="));
  EXPECT_THAT(line, HasSubstr(".000000"));
  EXPECT_THAT(line, EndsWith(" level=info event=serving\n"));
}

TEST(LogLineTest, JsonHasNumbersAndStrings) {
  EXPECT_THAT(Json("event=start version=0.1.0 pid=4711 share=-1.5e-3"),
              EndsWith("\"level\":\"info\",\"event\":\"start\",\"version\":\"0.1.0\","
                       "\"pid\":4711,\"share\":-1.5e-3}\n"));
}

TEST(LogLineTest, JsonUnescapesWhatLogValueEscaped) {
  const std::string text = "say \"hi\"\n\\ \x01 \x7F \xC3\xA4 =";
  EXPECT_THAT(Json("event=x reason=" + LogValue(text)),
              EndsWith("\"reason\":\"say \\\"hi\\\"\\u000a\\\\ \\u0001 \\u007f \xC3\xA4 =\"}\n"));
}

TEST(LogLineTest, ATextThatReadsLikeANumberStaysText) {
  for (const char* text : {"0", "42", "-7", "1e5", "0.25"}) {
    EXPECT_THAT(Json("event=x id=" + LogValue(text)),
                EndsWith(std::string("\"id\":\"") + text + "\"}\n"));
  }
}

TEST(LogLineTest, NumbersAreThoseOfJson) {
  for (const char* text : {"0", "-0", "10", "0.5", "1E+9", "12.25e-3"}) EXPECT_TRUE(IsNumber(text));
  for (const char* text : {"", "-", "01", "1.", ".5", "+1", "1e", "0x10", "nan", "1 "}) {
    EXPECT_FALSE(IsNumber(text)) << text;
  }
}

TEST(LogLineTest, JsonReplacesWhatIsNoUtf8) {
  const std::string replacement = "\xEF\xBF\xBD";
  for (const char* bytes : {"\x80", "\xFF", "\xC0", "\xC3"}) {
    EXPECT_THAT(Json(std::string("event=x y=") + bytes),
                EndsWith("\"y\":\"" + replacement + "\"}\n"));
  }
  // A surrogate, an overlong slash, a code point beyond U+10FFFF: each byte becomes one replacement
  // character.
  EXPECT_THAT(Json("event=x y=\xED\xA0\x80"),
              EndsWith("\"" + replacement + replacement + replacement + "\"}\n"));
  EXPECT_THAT(Json("event=x y=\xE0\x80\xAF"), HasSubstr(replacement));
  EXPECT_THAT(Json("event=x y=\xF4\x90\x80\x80"), HasSubstr(replacement));
  EXPECT_THAT(Json("event=x y=\xF0\x9F\x98\x80"), EndsWith("\"\xF0\x9F\x98\x80\"}\n"));
}

TEST(LogLineTest, WhatIsNoPairsIsAMessage) {
  for (const char* text : {"hello world", "=x", "a b=c", "x=\"open", "x=\"y\"z", "x=y  z=1"}) {
    EXPECT_EQ(ValueOf(FieldsOf(text), "message"), text);
  }
  EXPECT_THAT(Json("hello \"world\""), EndsWith("\"message\":\"hello \\\"world\\\"\"}\n"));
}

TEST(LogLineTest, FieldsAreFoundByName) {
  const auto fields = FieldsOf("event=request reason=\"no = \\\"device\\\"\" id=\"\"");
  EXPECT_EQ(ValueOf(fields, "event"), "request");
  EXPECT_EQ(ValueOf(fields, "reason"), "no = \"device\"");
  EXPECT_EQ(ValueOf(fields, "id"), "");
  EXPECT_EQ(ValueOf(fields, "nothing"), "");
}

}  // namespace
}  // namespace gemmd
