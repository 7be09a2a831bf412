// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "server/kserve/models.h"

namespace gemmd {
namespace {

v1::Timing TimingOf(int64_t total_ns) {
  v1::Timing timing;
  timing.set_queue_ns(1);
  timing.set_copy_in_ns(2);
  timing.set_compute_ns(3);
  timing.set_copy_out_ns(4);
  timing.set_total_ns(total_ns);
  return timing;
}

RandomId IdOf(size_t number) {
  RandomId id;
  id.bytes[0] = static_cast<uint8_t>(number);
  id.bytes[1] = static_cast<uint8_t>(number >> 8);
  return id;
}

TEST(ModelCountsTest, PartsHaveTheCountOfTheWhole) {
  ModelCounts counts;
  counts.AddSuccess(std::nullopt, TimingOf(20), 5, 1000);
  counts.AddSuccess(std::nullopt, TimingOf(30), 1, 2000);
  counts.AddFailure(std::nullopt, 7);
  const ModelTotals totals = counts.Read(std::nullopt);
  EXPECT_EQ(totals.success.count, 2);
  EXPECT_EQ(totals.success.ns, 50);
  for (const DurationSum& part : {totals.queue, totals.copy_in, totals.compute, totals.copy_out}) {
    EXPECT_EQ(part.count, 2);
  }
  EXPECT_EQ(totals.compute.ns, 6);
  EXPECT_EQ(totals.fail.ns, 7);
  EXPECT_EQ(totals.matrices, 6);
  EXPECT_EQ(totals.last_ms, 2000);
  EXPECT_EQ(counts.Read(IdOf(1)).success.count, 0);
}

// An empty product may have 2^62 matrices, and costs nothing.
TEST(ModelCountsTest, StopAtTheLargestNumber) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  ModelCounts counts;
  for (int i = 0; i < 2; ++i) {
    counts.AddSuccess(std::nullopt, TimingOf(kMax), int64_t{1} << 62, 1000);
    counts.AddFailure(std::nullopt, kMax);
  }
  const ModelTotals totals = counts.Read(std::nullopt);
  EXPECT_EQ(totals.matrices, kMax);
  EXPECT_EQ(totals.success.ns, kMax);
  EXPECT_EQ(totals.fail.ns, kMax);
}

TEST(ModelCountsTest, ForgetsWhatWasUsedTheLongestAgo) {
  ModelCounts counts;
  for (size_t i = 0; i < ModelCounts::kMaxTensors; ++i) counts.AddFailure(IdOf(i), 1);
  counts.AddFailure(IdOf(0), 1);
  counts.AddFailure(IdOf(ModelCounts::kMaxTensors), 1);
  EXPECT_EQ(counts.Read(IdOf(0)).fail.count, 2);
  EXPECT_EQ(counts.Read(IdOf(1)).fail.count, 0);
  EXPECT_EQ(counts.Read(IdOf(2)).fail.count, 1);
}

}  // namespace
}  // namespace gemmd
