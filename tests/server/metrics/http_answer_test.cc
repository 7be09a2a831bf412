// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/metrics/http.h"

namespace gemmd {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::optional<Page> OnePage(std::string_view path) {
  if (path == "/page") return Page{.body = "body\n"};
  if (path == "/ill") return Page{.body = "ill\n", .is_available = false};
  return std::nullopt;
}

std::string Answer(const std::string& line) {
  return AnswerTo(line + "\r\nHost: x\r\n\r\n", OnePage);
}

TEST(HttpAnswerTest, IsThePageWithItsLength) {
  EXPECT_EQ(Answer("GET /page HTTP/1.1"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            "Content-Length: 5\r\nConnection: close\r\n\r\nbody\n");
  EXPECT_THAT(Answer("GET /page?a=b c HTTP/1.1"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Answer("GET /page?a=b HTTP/1.0"), EndsWith("\r\n\r\nbody\n"));
}

TEST(HttpAnswerTest, APageMayBeUnavailable) {
  EXPECT_THAT(Answer("GET /ill HTTP/1.1"), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(Answer("GET /ill HTTP/1.1"), EndsWith("\r\n\r\nill\n"));
}

TEST(HttpAnswerTest, TakesAWholeUrlAsWell) {
  EXPECT_THAT(Answer("GET http://host:8471/page?a=b HTTP/1.1"), EndsWith("\r\n\r\nbody\n"));
  EXPECT_THAT(Answer("GET http://host HTTP/1.1"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Answer("GET ftp://host/page HTTP/1.1"), StartsWith("HTTP/1.1 400 "));
}

TEST(HttpAnswerTest, OfHeadHasNoBody) {
  EXPECT_THAT(Answer("HEAD /page HTTP/1.1"), HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(Answer("HEAD /page HTTP/1.1"), EndsWith("\r\n\r\n"));
  EXPECT_THAT(Answer("HEAD /none HTTP/1.1"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Answer("HEAD /none HTTP/1.1"), EndsWith("\r\n\r\n"));
}

TEST(HttpAnswerTest, RefusesEverythingElse) {
  EXPECT_THAT(Answer("GET /none HTTP/1.1"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(Answer("POST /page HTTP/1.1"), HasSubstr("\r\nAllow: GET, HEAD\r\n"));
  EXPECT_THAT(Answer("POST /page HTTP/1.1"), StartsWith("HTTP/1.1 405 "));
  for (const char* line : {"", " ", "  ", "GET", "GET /page", "GET page HTTP/1.1", "GET  HTTP/1.1",
                           "GET /page HTTP/2.0", "GET /page  HTTP/1.1", "GET /pa ge HTTP/1.1"}) {
    EXPECT_THAT(Answer(line), StartsWith("HTTP/1.1 400 Bad Request\r\n")) << line;
  }
  EXPECT_THAT(AnswerTo("GET /page HTTP/1.1\r\nX: " + std::string(kMaxHeadBytes, 'x'), OnePage),
              StartsWith("HTTP/1.1 431 "));
}

TEST(HttpAnswerTest, WaitsForTheWholeHeadButNotForEver) {
  EXPECT_FALSE(IsWholeHead(""));
  EXPECT_FALSE(IsWholeHead("GET /page HTTP/1.1\r\nHost: x\r\n"));
  EXPECT_TRUE(IsWholeHead("GET /page HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_FALSE(IsWholeHead(std::string(kMaxHeadBytes, 'x')));
  EXPECT_TRUE(IsWholeHead(std::string(kMaxHeadBytes + 1, 'x')));
}

}  // namespace
}  // namespace gemmd
