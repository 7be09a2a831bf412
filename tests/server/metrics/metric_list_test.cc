// SPDX-License-Identifier: Apache-2.0
//
// The lists of metrics: names, units and texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>

#include "kernels/matrix/text.h"
#include "server/metrics/metric.h"
#include "tests/server/metrics/all_metrics.h"

namespace gemmd {
namespace {

TEST(MetricListTest, NamesAreThereOnceAndEndAsTheirTypeSays) {
  std::set<std::string_view> names;
  for (const Metric& metric : AllMetrics()) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
    EXPECT_FALSE(metric.help.empty()) << metric.name;
    EXPECT_FALSE(metric.help.ends_with(".")) << metric.name;
    EXPECT_EQ(metric.help.find('|'), metric.help.npos) << metric.name << " breaks the table";
  }
  for (const Metric& metric : JoinedMetrics(OwnMetrics())) {
    const bool is_counter = metric.type == MetricType::kCounter;
    EXPECT_EQ(metric.name.ends_with("_total"), is_counter) << metric.name;
    if (metric.type == MetricType::kHistogram) {
      EXPECT_TRUE(metric.name.ends_with("_seconds")) << metric.name;
    }
  }
}

TEST(MetricListTest, ASeriesHasNameAndLabelsAndTellsTypeAndUnit) {
  constexpr Metric kCounter("gemmd_copy_seconds_total{device,how}", "Help", nullptr);
  EXPECT_EQ(kCounter.name, "gemmd_copy_seconds_total");
  EXPECT_THAT(kCounter.labels, testing::ElementsAre("device", "how", "", ""));
  EXPECT_EQ(kCounter.type, MetricType::kCounter);
  EXPECT_EQ(kCounter.unit, "seconds");
  constexpr Metric kGauge("gemmd_places", "Help", nullptr);
  EXPECT_EQ(kGauge.name, "gemmd_places");
  EXPECT_THAT(kGauge.labels, testing::Each(""));
  EXPECT_EQ(kGauge.type, MetricType::kGauge);
  EXPECT_EQ(kGauge.unit, "");
  constexpr Metric kGiven("nv_power{gpu_uuid}", "Help", nullptr, MetricType::kCounter, "watts");
  EXPECT_EQ(kGiven.type, MetricType::kCounter);
  EXPECT_EQ(kGiven.unit, "watts");
}

// Whether a text cannot be understood without another one above or beside it, because it begins
// like the second half of a sentence.
bool LeansOnOther(const std::string& text) {
  static const std::regex* const leaning =
      new std::regex("^(Of|The same|And|Or|But|That|Which|Also|Other|Others|As|By)\\b");
  return std::regex_search(text, *leaning);
}

TEST(MetricListTest, HelpThatLeansOnOtherTextIsFound) {
  for (const char* text : {"Of which they waited for the device", "The same for each stage",
                           "Other products", "And the most that it may take"}) {
    EXPECT_TRUE(LeansOnOther(text)) << text;
  }
  EXPECT_FALSE(LeansOnOther("Products that wait for the device"));
}

TEST(MetricListTest, EachHelpStandsAlone) {
  for (const Metric& metric : AllMetrics()) {
    EXPECT_FALSE(LeansOnOther(std::string(metric.help))) << metric.name << ": " << metric.help;
  }
}

// The list of metrics prints texts unescaped.
TEST(MetricListTest, TextsNeedNoEscapingInJson) {
  const auto stands_for_itself = [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  };
  for (const Metric& metric : AllMetrics()) {
    std::string texts(Concat(metric.name, metric.unit, metric.help));
    for (const std::string_view label : metric.labels) texts += label;
    EXPECT_TRUE(std::all_of(texts.begin(), texts.end(), stands_for_itself)) << texts;
  }
}

// Prometheus's names end with the unit, possibly followed by _total or _limit.
TEST(MetricListTest, NamesTellTheUnit) {
  for (const Metric& metric : JoinedMetrics(OwnMetrics())) {
    for (const std::string_view unit :
         {"seconds", "bytes", "ratio", "watts", "joules", "hertz", "celsius"}) {
      const bool is_named = metric.name.find(Concat("_", unit)) != metric.name.npos;
      EXPECT_EQ(metric.unit == unit, is_named) << metric.name << " has the unit " << metric.unit;
    }
  }
}

}  // namespace
}  // namespace gemmd
