// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "server/system/clock.h"
#include "server/system/log.h"

namespace gemmd {
namespace {

constexpr RepeatLimit::Limits kLimits = {.lines = 3, .window_ns = 100, .kinds = 4};

TEST(RepeatLimitTest, AdmitsTheFirstOfEachWindow) {
  RepeatLimit limit(kLimits);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Admit("request", "lost", 0));
  EXPECT_EQ(limit.next_end_ns(), kNoDeadlineNs);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(limit.Admit("request", "lost", 50));
  EXPECT_EQ(limit.next_end_ns(), 100);
  EXPECT_TRUE(limit.TakeEnded(99).empty());
  const auto ended = limit.TakeEnded(100);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].event, "request");
  EXPECT_EQ(ended[0].reason, "lost");
  EXPECT_EQ(ended[0].lines, 5);
  EXPECT_TRUE(limit.TakeEnded(200).empty());
  EXPECT_TRUE(limit.Admit("request", "lost", 100));
}

TEST(RepeatLimitTest, KindsHaveWindowsOfTheirOwn) {
  RepeatLimit limit(kLimits);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Admit("request", "lost", 0));
  EXPECT_FALSE(limit.Admit("request", "lost", 0));
  EXPECT_TRUE(limit.Admit("request", "late", 0));
  EXPECT_TRUE(limit.Admit("grpc", "", 0));
}

TEST(RepeatLimitTest, AWindowWithNothingLeftOutStartsAnewByItself) {
  RepeatLimit limit(kLimits);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Admit("request", "lost", 0));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Admit("request", "lost", 100));
  EXPECT_FALSE(limit.Admit("request", "lost", 199));
}

TEST(RepeatLimitTest, ReasonsWithoutEndAreOneKind) {
  RepeatLimit limit(kLimits);
  int admitted = 0;
  for (int i = 0; i < 1000; ++i) {
    admitted += limit.Admit("request", std::to_string(i), 0) ? 1 : 0;
  }
  EXPECT_EQ(admitted, 4 + 3);
  int64_t left_out = 0;
  for (const auto& kind : limit.TakeEnded(100)) left_out += kind.lines;
  EXPECT_EQ(left_out, 1000 - admitted);
  // Entries whose windows have ended make room.
  EXPECT_TRUE(limit.Admit("request", "another", 200));
}

}  // namespace
}  // namespace gemmd
