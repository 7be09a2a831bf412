// SPDX-License-Identifier: Apache-2.0
//
// Counting without locks: every addition is counted once, in its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "kernels/kernel.h"
#include "server/product/counts.h"

namespace gemmd {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(LatencyHistogramTest, BoundsAreOneTwoFiveFromAMicrosecond) {
  const auto& bounds = LatencyHistogram::kBoundsNs;
  EXPECT_THAT(std::vector<int64_t>(bounds.begin(), bounds.begin() + 4),
              ElementsAre(1'000, 2'000, 5'000, 10'000));
  EXPECT_EQ(bounds.back(), 50'000'000'000);
}

TEST(LatencyHistogramTest, ABoundBelongsToItsBucket) {
  LatencyHistogram histogram;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 2;
  for (const int64_t ns : {int64_t{0}, int64_t{1'000}, int64_t{1'001}, int64_t{2'000}, kMax}) {
    histogram.Add(ns);
  }
  const LatencyHistogram snapshot = histogram;
  EXPECT_EQ(snapshot.counts[0], 2);
  EXPECT_EQ(snapshot.counts[1], 2);
  EXPECT_EQ(snapshot.counts.back(), 1);
  EXPECT_EQ(snapshot.count(), 5);
  EXPECT_EQ(snapshot.sum_ns, kMax + 4'001);
}

Completion Example(const Kernel& kernel) {
  return {.device = 1,
          .kernel = &kernel,
          .timing = {.stage_ns = {1'000, 2'000, 3'000, 4'000, 5'000, 6'000}, .total_ns = 21'000},
          .operations = 100,
          .bytes_read = 20,
          .bytes_written = 10,
          .batch = 3};
}

TEST(StatsTest, AProductThatIsOkCountsEverywhere) {
  Stats stats(2);
  const Kernel& kernel = *(Catalog().begin() + 5);
  stats.AddCompletion(Example(kernel));
  const Stats::DeviceTotals totals = stats.device(1);
  EXPECT_EQ(totals.ends[0], 1);
  EXPECT_EQ(totals.operations, 100);
  EXPECT_EQ(totals.bytes_read, 20);
  EXPECT_EQ(totals.bytes_written, 10);
  EXPECT_EQ(totals.matrices, 3);
  EXPECT_EQ(totals.total.sum_ns, 21'000);
  EXPECT_THAT(stats.device(0).ends, Each(0));
  const std::vector<Stats::KernelTotals> kernels = stats.kernels();
  ASSERT_EQ(kernels.size(), 1U);
  EXPECT_EQ(kernels[0].kernel, kernel.name);
  EXPECT_EQ(kernels[0].device_kind, kernel.device_kind);
  EXPECT_EQ(kernels[0].products, 1);
  EXPECT_EQ(kernels[0].compute_ns, 1'000 * (static_cast<int64_t>(Stage::kCompute) + 1));
  const std::vector<Stats::KindTotals> kinds = stats.kinds();
  ASSERT_EQ(kinds.size(), 1U);
  EXPECT_EQ(kinds[0].device_kind, kernel.device_kind);
  EXPECT_EQ(kinds[0].total.count(), 1);
  for (size_t i = 0; i < kStages; ++i) {
    EXPECT_EQ(kinds[0].stages[i].sum_ns, static_cast<int64_t>(i + 1) * 1'000);
  }
}

// A kernel that ran four products as one ran once.
TEST(StatsTest, AKernelRanOnceForProductsThatRanAsOne) {
  Stats stats(2);
  Completion member = Example(Catalog()[5]);
  member.joined = 4;
  for (int i = 0; i < 4; ++i) stats.AddCompletion(member);
  EXPECT_EQ(stats.kernels()[0].products, 4);
  EXPECT_EQ(stats.kernels()[0].compute_ns, 4'000);
  EXPECT_EQ(stats.kinds()[0].stages[static_cast<size_t>(Stage::kCompute)].sum_ns, 4 * 4'000);
}

TEST(StatsTest, SumsStopAtTheLargestNumber) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Stats stats(2);
  Completion huge = Example(Catalog()[5]);
  huge.operations = huge.bytes_read = huge.bytes_written = huge.batch = int64_t{1} << 60;
  huge.timing.total_ns = kMax;
  for (int64_t& stage_ns : huge.timing.stage_ns) stage_ns = kMax;
  for (int i = 0; i < 16; ++i) stats.AddCompletion(huge);
  const Stats::DeviceTotals totals = stats.device(1);
  EXPECT_EQ(totals.operations, kMax);
  EXPECT_EQ(totals.bytes_read, kMax);
  EXPECT_EQ(totals.bytes_written, kMax);
  EXPECT_EQ(totals.matrices, kMax);
  EXPECT_EQ(totals.total.sum_ns, kMax);
  EXPECT_EQ(stats.kinds()[0].stages[0].sum_ns, kMax);
  EXPECT_EQ(stats.kernels()[0].compute_ns, kMax);
}

TEST(StatsTest, OneThatFailedCountsByItsStatusOnly) {
  Stats stats(2);
  Completion failed = Example(Catalog()[5]);
  failed.code = absl::StatusCode::kAborted;
  stats.AddCompletion(failed);
  const Stats::DeviceTotals totals = stats.device(1);
  EXPECT_EQ(totals.ends[static_cast<size_t>(absl::StatusCode::kAborted)], 1);
  EXPECT_EQ(totals.ends[0], 0);
  EXPECT_EQ(totals.operations, 0);
  EXPECT_EQ(totals.total.count(), 0);
  EXPECT_TRUE(stats.kinds().empty());
  EXPECT_TRUE(stats.kernels().empty());
}

// Nothing can create an unlimited number of series,
TEST(StatsTest, OnlyKernelsOfTheCatalogueHaveSeries) {
  Stats stats(2);
  const Kernel other = Catalog()[5];
  stats.AddCompletion(Example(other));
  EXPECT_EQ(stats.device(1).ends[0], 1);
  EXPECT_TRUE(stats.kernels().empty());
}

// Even if a caller names every kernel of the catalogue.
TEST(StatsTest, OnlyTheFirstKernelsHaveSeriesOfTheirOwn) {
  Stats stats(2);
  const absl::Span<const Kernel> catalog = Catalog();
  ASSERT_GT(catalog.size(), Stats::kMaxKernels);
  for (int round = 0; round < 2; ++round) {
    for (const Kernel& kernel : catalog) stats.AddCompletion(Example(kernel));
  }
  std::map<DeviceKind, int64_t> expected;
  for (size_t i = Stats::kMaxKernels; i < catalog.size(); ++i) {
    expected[catalog[i].device_kind] += 2;
  }
  const std::vector<Stats::KernelTotals> kernels = stats.kernels();
  ASSERT_EQ(kernels.size(), Stats::kMaxKernels + expected.size());
  std::map<DeviceKind, int64_t> others;
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (i < Stats::kMaxKernels) {
      EXPECT_EQ(kernels[i].kernel, catalog[i].name);
      EXPECT_EQ(kernels[i].products, 2);
    } else {
      EXPECT_EQ(kernels[i].kernel, "other");
      others[kernels[i].device_kind] = kernels[i].products;
    }
  }
  EXPECT_EQ(others, expected);
}

TEST(StatsTest, RefusalsCountByReason) {
  Stats stats(1);
  stats.AddRefusal(ReasonOf(absl::InvalidArgumentError("")));
  stats.AddRefusal(ReasonOf(absl::NotFoundError("")));
  stats.AddRefusal(ReasonOf(absl::UnimplementedError("")));
  stats.AddRefusal(ReasonOf(absl::ResourceExhaustedError("")));
  stats.AddRefusal(ReasonOf(absl::UnavailableError("")));
  stats.AddRefusal(ReasonOf(absl::InternalError("")));
  for (const RefusalReason reason :
       {RefusalReason::kTooLong, RefusalReason::kDeadline, RefusalReason::kBacklog,
        RefusalReason::kShare, RefusalReason::kKernelRefused}) {
    stats.AddRefusal(reason);
  }
  EXPECT_THAT(stats.refusals(), Each(1));
  EXPECT_EQ(NameOf(ReasonOf(absl::UnavailableError(""))), "not_ready");
}

TEST(StatsTest, OnlyChecksThatPassedAddWhatTheyMissAndCost) {
  Stats stats(1);
  AnswerVerification given;
  given.mode = VerifyMode::kSampled;
  given.end = VerifyEnd::kPassed;
  given.miss_probability = 0.25;
  given.cost = 0.5;
  given.verify_ns = 3;
  stats.AddVerification(given);
  given.end = VerifyEnd::kNotVerified;
  given.verify_ns = 4;
  stats.AddVerification(given);
  stats.AddVerification(VerifyMode::kSampled, VerifyEnd::kFailed, 5);
  for (const VerifyEnd end : {VerifyEnd::kPassed, VerifyEnd::kNotVerified, VerifyEnd::kFailed}) {
    EXPECT_EQ(stats.verifications(VerifyMode::kSampled).ends[static_cast<size_t>(end)], 1);
  }
  EXPECT_EQ(stats.verifications(VerifyMode::kSampled).took_ns, 12);
  EXPECT_EQ(stats.verifications(VerifyMode::kSampled).miss_probability, 0.25);
  EXPECT_EQ(stats.verifications(VerifyMode::kSampled).cost, 0.5);
  EXPECT_EQ(stats.verifications(VerifyMode::kChecksum).cost, 0);
}

TEST(StatsTest, ManyThreadsLoseNothingWhileOneReads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2'000;
  constexpr size_t kKernels = 3;
  Stats stats(2);
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    int64_t last = 0;
    while (!is_over) {
      const int64_t now = stats.device(1).ends[0];
      EXPECT_GE(now, last);
      last = now;
      for (const Stats::KernelTotals& kernel : stats.kernels()) EXPECT_NE(kernel.kernel, "");
    }
  });
  std::vector<std::thread> writers;
  for (int t = 0; t < kThreads; ++t) {
    writers.emplace_back([&] {
      for (size_t i = 0; i < kEach; ++i) stats.AddCompletion(Example(Catalog()[i % kKernels]));
    });
  }
  for (std::thread& writer : writers) writer.join();
  is_over = true;
  reader.join();
  EXPECT_EQ(stats.device(1).ends[0], kThreads * kEach);
  int64_t sum = 0;
  for (const Stats::KernelTotals& kernel : stats.kernels()) sum += kernel.products;
  EXPECT_EQ(stats.kernels().size(), kKernels);
  EXPECT_EQ(sum, kThreads * kEach);
}

}  // namespace
}  // namespace gemmd
