// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "server/product/queue.h"

namespace gemmd {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
constexpr int64_t kMemoryNs = LightFlows::kMemoryNs;

TEST(LightFlowsTest, CountsTheOthersOnly) {
  LightFlows flows;
  EXPECT_EQ(flows.MinOfOthers({"a"}, 0), kNone);
  flows.Add({"a"}, 10, 0);
  EXPECT_EQ(flows.MinOfOthers({"a"}, 0), kNone);
  EXPECT_EQ(flows.MinOfOthers({"b"}, 0), 10);
  flows.Add({"b"}, 20, 0);
  EXPECT_EQ(flows.MinOfOthers({"a"}, 0), 20);
  EXPECT_EQ(flows.MinOfOthers({"b"}, 0), 10);
}

TEST(LightFlowsTest, KeepsTheLightestTwo) {
  LightFlows flows;
  flows.Add({"a"}, 30, 0);
  flows.Add({"b"}, 20, 0);
  flows.Add({"c"}, 40, 0);
  EXPECT_EQ(flows.MinOfOthers({"b"}, 0), 30);
  flows.Add({"d"}, 10, 0);
  EXPECT_EQ(flows.MinOfOthers({"d"}, 0), 20);
  EXPECT_EQ(flows.MinOfOthers({"b"}, 0), 10);
}

TEST(LightFlowsTest, CountsTheLeastProductOfAFlow) {
  LightFlows flows;
  flows.Add({"a"}, 30, 0);
  flows.Add({"a"}, 10, 0);
  flows.Add({"a"}, 20, 0);
  EXPECT_EQ(flows.MinOfOthers({"b"}, 0), 10);
}

TEST(LightFlowsTest, ForgetsAFlowThatSendsNothing) {
  LightFlows flows;
  flows.Add({"a"}, 10, 0);
  EXPECT_EQ(flows.MinOfOthers({"b"}, kMemoryNs - 1), 10);
  EXPECT_EQ(flows.MinOfOthers({"b"}, kMemoryNs), kNone);
  flows.Add({"c"}, 50, kMemoryNs);
  flows.Add({"d"}, 60, kMemoryNs);
  EXPECT_EQ(flows.MinOfOthers({"c"}, kMemoryNs), 60);
}

// A flow that now sends larger products than before is counted by those after a while.
TEST(LightFlowsTest, ForgetsASmallProductOfAFlow) {
  LightFlows flows;
  flows.Add({"a"}, 10, 0);
  flows.Add({"a"}, 90, kMemoryNs - 1);
  EXPECT_EQ(flows.MinOfOthers({"b"}, kMemoryNs - 1), 10);
  flows.Add({"a"}, 90, kMemoryNs);
  EXPECT_EQ(flows.MinOfOthers({"b"}, kMemoryNs), 90);
  EXPECT_EQ(flows.MinOfOthers({"b"}, 2 * kMemoryNs - 1), 90);
}

}  // namespace
}  // namespace gemmd
