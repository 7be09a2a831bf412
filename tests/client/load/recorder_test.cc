// SPDX-License-Identifier: Apache-2.0
//
// The division of a run into intervals.
#include "client/load/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "client/matrix/random_matrix.h"

namespace gemmd {
namespace {

// The definition: the smallest value that at least this share of the values does not exceed.
int64_t NearestRank(std::vector<int64_t> values, double fraction) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(fraction * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

// From a few nanoseconds to hours.
std::vector<int64_t> WideValues(size_t count, uint64_t seed) {
  SplitMix random(seed);
  std::vector<int64_t> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(static_cast<int64_t>(std::exp2(random.Unit() * 44)));
  }
  return values;
}

TEST(HistogramTest, IsExactBelow2048) {
  Histogram histogram;
  for (int64_t value = 0; value < 2048; ++value) histogram.Record(value);
  for (int64_t rank = 1; rank <= 2048; ++rank) EXPECT_EQ(histogram.ValueAtRank(rank), rank - 1);
}

TEST(HistogramTest, KnowsEachValueToOnePartIn1024) {
  for (const int64_t value : WideValues(10000, 1)) {
    Histogram histogram;
    histogram.Record(value);
    histogram.Record(std::numeric_limits<int64_t>::max());
    const int64_t got = histogram.Buckets()[0].value_ns;
    EXPECT_GE(got, value);
    EXPECT_LE(got - value, value / 1024) << value;
  }
}

TEST(HistogramTest, PercentilesAreThoseOfTheSortedValues) {
  const std::vector<int64_t> values = WideValues(20000, 2);
  Histogram histogram;
  for (const int64_t value : values) histogram.Record(value);
  for (const double fraction : {0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0}) {
    const int64_t want = NearestRank(values, fraction);
    const int64_t got = histogram.ValueAt(fraction);
    EXPECT_GE(got, want) << fraction;
    EXPECT_LE(got - want, want / 1024) << fraction;
  }
  EXPECT_EQ(histogram.min_ns(), NearestRank(values, 0));
  EXPECT_EQ(histogram.max_ns(), NearestRank(values, 1));
}

// 0.07 x 100 is slightly above 7.
TEST(HistogramTest, RanksAreNotRoundedUp) {
  Histogram histogram;
  for (int64_t i = 1; i <= 100; ++i) histogram.Record(i);
  for (int64_t percent = 1; percent <= 100; ++percent) {
    EXPECT_EQ(histogram.ValueAt(static_cast<double>(percent) / 100), percent);
  }
}

// A tenth of the values is less than a share of 0.11, and nine tenths are less than 0.91.
TEST(HistogramTest, RanksBetweenTwoValuesAreTakenUp) {
  Histogram histogram;
  for (int64_t i = 1; i <= 10; ++i) histogram.Record(i);
  EXPECT_EQ(histogram.ValueAt(0.11), 2);
  EXPECT_EQ(histogram.ValueAt(0.5), 5);
  EXPECT_EQ(histogram.ValueAt(0.91), 10);
}

TEST(HistogramTest, MergesWithoutLoss) {
  Histogram whole;
  Histogram merged;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Histogram part;
    for (const int64_t value : WideValues(1000 * seed, seed)) {
      part.Record(value);
      whole.Record(value);
    }
    merged.Merge(part);
  }
  merged.Merge(Histogram());
  ASSERT_EQ(merged.count(), whole.count());
  EXPECT_EQ(merged.min_ns(), whole.min_ns());
  EXPECT_EQ(merged.max_ns(), whole.max_ns());
  for (int64_t rank = 1; rank <= whole.count(); rank += 7) {
    ASSERT_EQ(merged.ValueAtRank(rank), whole.ValueAtRank(rank));
  }
}

TEST(HistogramTest, SurvivesItsBuckets) {
  Histogram histogram;
  for (const int64_t value : WideValues(5000, 3)) histogram.Record(value);
  const Histogram copy = Histogram::FromBuckets(histogram.Buckets(), histogram.min_ns(),
                                                histogram.max_ns(), histogram.sum_ns());
  EXPECT_EQ(copy.count(), histogram.count());
  EXPECT_EQ(copy.MeanNs(), histogram.MeanNs());
  for (int64_t rank = 1; rank <= histogram.count(); ++rank) {
    ASSERT_EQ(copy.ValueAtRank(rank), histogram.ValueAtRank(rank));
  }
}

TEST(HistogramTest, CountsWhatIsAbove) {
  Histogram histogram;
  histogram.Record(1000, 3);
  histogram.Record(1'000'000, 2);
  EXPECT_EQ(histogram.CountAbove(999), 5);
  EXPECT_EQ(histogram.CountAbove(1000), 2);
  EXPECT_EQ(histogram.CountAbove(1'000'000), 0);
  EXPECT_EQ(histogram.CountAbove(-5), 5);
}

TEST(HistogramTest, EmptyAndNegative) {
  Histogram histogram;
  EXPECT_EQ(histogram.ValueAt(0.5), 0);
  EXPECT_EQ(histogram.MeanNs(), 0);
  histogram.Record(-7);
  histogram.Record(5, 0);
  EXPECT_EQ(histogram.count(), 1);
  EXPECT_EQ(histogram.max_ns(), 0);
}

CallSample SampleEndedAt(int64_t ended_ns) {
  CallSample sample;
  sample.ended_ns = ended_ns;
  sample.code = absl::StatusCode::kOk;
  return sample;
}

TEST(RecorderTest, CallsBelongToTheIntervalInWhichTheyEndedHoweverLateItIsTaken) {
  Recorder recorder(0, 1000);
  recorder.SetIntervalEnd(100);
  recorder.Add(SampleEndedAt(99));
  recorder.Add(SampleEndedAt(100));
  std::thread([&] { recorder.Add(SampleEndedAt(150)); }).join();
  EXPECT_EQ(recorder.TakeInterval(200).ok(), 1);
  recorder.Add(SampleEndedAt(199));
  recorder.Add(SampleEndedAt(200));
  const IntervalTally second = recorder.TakeInterval(300);
  EXPECT_EQ(second.ok(), 3);
  EXPECT_EQ(second.latency.max_ns(), 199);
  EXPECT_EQ(recorder.TakeInterval(400).ok(), 1);
}

TEST(RecorderTest, TheRestHasEverythingThatIsLeft) {
  Recorder recorder(0, 1000);
  recorder.SetIntervalEnd(100);
  recorder.Add(SampleEndedAt(1));
  recorder.Add(SampleEndedAt(500));
  EXPECT_EQ(recorder.TakeRest().ok(), 2);
  EXPECT_EQ(recorder.TakeRest().ok(), 0);
}

TEST(RecorderTest, ARateIsMadeOfTheCallsThatEndedWellWithinTheWindow) {
  Recorder recorder(100, 200);
  recorder.Add(SampleEndedAt(99));
  EXPECT_EQ(recorder.EndedInWindow(), 0);
  recorder.Add(SampleEndedAt(100));  // Due in the warm-up, at 0.
  recorder.Add(SampleEndedAt(199));
  EXPECT_EQ(recorder.EndedInWindow(), 2);
  recorder.Add(SampleEndedAt(200));
  EXPECT_EQ(recorder.EndedInWindow(), 2);
  CallSample failed = SampleEndedAt(150);
  failed.code = absl::StatusCode::kUnavailable;
  recorder.Add(failed);
  EXPECT_EQ(recorder.EndedInWindow(), 2);
  recorder.EndWindow(180);
  recorder.Add(SampleEndedAt(180));
  EXPECT_EQ(recorder.EndedInWindow(), 2);
  recorder.Add(SampleEndedAt(179));
  EXPECT_EQ(recorder.EndedInWindow(), 3);
}

}  // namespace
}  // namespace gemmd
