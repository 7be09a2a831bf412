// SPDX-License-Identifier: Apache-2.0
//
// gemmctl top: callers between two statistics, and how they are shown.
#include "client/gemmctl/top_callers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/gemmctl/activity.h"
#include "client/gemmctl/top_view.h"
#include "client/terminal/fitted_table.h"
#include "gemmd/v1/statistics.pb.h"

namespace gemmd {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

v1::CallerStatistics& AddCaller(const std::string& rule, int64_t answered, int64_t compute_ns,
                                v1::GetStatisticsResponse& statistics) {
  v1::CallerStatistics& caller = *statistics.add_callers();
  caller.set_rule(rule);
  caller.set_answered(answered);
  caller.set_compute_ns(compute_ns);
  return caller;
}

v1::GetStatisticsResponse At(int64_t seconds) {
  v1::GetStatisticsResponse statistics;
  statistics.set_uptime_ns(seconds * 1'000'000'000);
  statistics.set_started_unix_ns(1);
  return statistics;
}

TEST(TopCallersTest, ShowsThoseWhoHadProductsOrHaveTensors) {
  v1::GetStatisticsResponse before = At(8);
  AddCaller("light", 100, 1'000'000'000, before).set_refused(3);
  AddCaller("idle", 7, 5'000'000'000, before);
  v1::GetStatisticsResponse now = At(10);
  v1::CallerStatistics& light = AddCaller("light", 120, 1'200'000'000, now);
  light.set_refused(13);
  light.set_failed(2);
  AddCaller("idle", 7, 5'000'000'000, now);
  AddCaller("holds", 0, 0, now).set_tensor_bytes(3 << 20);
  AddCaller("team/*", 4, 1'000'000'000, now);
  const ActivityRates rates = RatesBetween(before, now);
  ASSERT_EQ(rates.callers.size(), 3U);
  EXPECT_EQ(rates.callers[0].rule, "team/*");
  EXPECT_EQ(rates.callers[1].products_per_second, 10);
  EXPECT_EQ(rates.callers[1].failures_per_second, 1);
  EXPECT_EQ(rates.callers[1].refusals_per_second, 5);
  EXPECT_DOUBLE_EQ(rates.callers[1].computing, 0.1);
  const std::string text = TopText("a", now, rates);
  EXPECT_THAT(
      text, AllOf(ContainsRegex("team/. +2 +0 +0 +83 % +0 B\nlight +10 +1 +5 +17 % +0 B\nholds +0 "
                                "+0 +0 +0 % +3.00 MiB\n"),
                  Not(HasSubstr("idle"))));
  const auto json = TopJson(now, rates)["callers"];
  ASSERT_EQ(json.size(), 3U);
  EXPECT_EQ(json[1]["rule"], "light");
  EXPECT_EQ(json[1]["refusals_per_second"], 5);
  EXPECT_DOUBLE_EQ(json[1]["computing"], 0.1);
  EXPECT_DOUBLE_EQ(json[1]["share_of_computing"], 0.1 / 0.6);
  EXPECT_EQ(json[2]["tensor_bytes"], 3 << 20);
}

TEST(TopCallersTest, AreAsManyAndAsWideAsFit) {
  EXPECT_EQ(CallersText({}, 80), "");
  EXPECT_THAT(TopText("a", At(10), RatesBetween(At(8), At(10))), Not(HasSubstr("caller")));
  std::vector<CallerRates> callers;
  for (int i = 0; i < 9; ++i) callers.push_back({.rule = "rule" + std::to_string(i)});
  const std::string text = CallersText(callers, 50);
  EXPECT_THAT(text, AllOf(HasSubstr("rule7"), Not(HasSubstr("rule8")), HasSubstr("1 more caller\n"),
                          Not(HasSubstr("failed/s"))));
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    EXPECT_LE(ColumnsOf(text.substr(at, text.find('\n', at) - at)), 50);
  }
}

}  // namespace
}  // namespace gemmd
