// SPDX-License-Identifier: Apache-2.0
//
// Text that fits a terminal: tables without their least needed columns, lines that are cut, bars.
#include "client/terminal/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>

namespace gemmd {
namespace {

TextTable Devices() {
  TextTable table({{"device"},
                   {"state", TextTable::Align::kLeft, 2},
                   {"busy", TextTable::Align::kRight, 0},
                   {"rate", TextTable::Align::kRight, 1}});
  table.AddRow({"cpu", "ready", "5 %", "1 GFLOP/s"});
  return table;
}

TEST(FittedTableTest, GoesWithoutTheLeastNeededColumnsFirst) {
  EXPECT_EQ(Devices().Print(), "device  state  busy       rate\ncpu     ready   5 %  1 GFLOP/s\n");
  EXPECT_EQ(Devices().Print(30), Devices().Print());
  EXPECT_EQ(Devices().Print(29), "device  busy       rate\ncpu      5 %  1 GFLOP/s\n");
  EXPECT_EQ(Devices().Print(22), "device  busy\ncpu      5 %\n");
  // What is always there is cut.
  EXPECT_EQ(Devices().Print(9), "device  b\ncpu      \n");
}

TEST(CutTextTest, CountsCharactersAndTellsOfMissingLines) {
  EXPECT_EQ(ColumnsOf("a\u2588b"), 3);
  EXPECT_EQ(CutText("a\u2588b\ncd\n", 2, 9), "a\u2588\ncd\n");
  EXPECT_EQ(CutText("1\n2\n3\n4\n", 80, 4), "1\n2\n3\n4\n");
  EXPECT_EQ(CutText("1\n2\n3\n4\n", 80, 3), "1\n2\n2 more lines\n");
  EXPECT_EQ(CutText("1\n2\n", 6, 0), "2 more\n");
  EXPECT_EQ(CutText("", 80, 24), "");
}

TEST(FlowTextTest, BreaksBetweenWords) {
  EXPECT_EQ(FlowText({"aa", "bb", "cc"}, "  ", 10), "aa  bb  cc\n");
  EXPECT_EQ(FlowText({"aa", "bb", "cc"}, "  ", 9), "aa  bb\ncc\n");
  EXPECT_EQ(FlowText({"aa", "too long", "c"}, " ", 4), "aa\ntoo long\nc\n");
  EXPECT_EQ(FlowText({"aa", "bb"}, "   ", kAnyColumns), "aa   bb\n");
}

TEST(SparklineTest, ShowsTheLastValuesBesideTheLargest) {
  EXPECT_EQ(Sparkline({}, 9), "");
  EXPECT_EQ(Sparkline({0, 0}, 9), "__");
  EXPECT_EQ(Sparkline({0, 8, 4, 0.001}, 9), "_\u2588\u2584\u2581");
  EXPECT_EQ(Sparkline({1e9, 1, 2}, 2), "\u2584\u2588");
}

}  // namespace
}  // namespace gemmd
