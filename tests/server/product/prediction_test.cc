// SPDX-License-Identifier: Apache-2.0
//
// What is learned from the times of products, and what can never be learned.
#include "server/product/prediction.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "kernels/kernel.h"
#include "tests/server/device/scripted_device.h"
#include "tests/testing/units.h"

namespace gemmd {
namespace {

constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();

Problem ProblemOf(int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.batch = batch;
  problem.d = TightLayout("d", ElementType::kF32, Order::kRowMajor, m, n).value();
  return problem;
}

class CorrectionTest : public testing::Test {
 protected:
  // Products that all take `times` as long as predicted.
  void Take(double times, int products, bool is_whole = true) {
    for (int i = 0; i < products; ++i) {
      correction_.Observe(kMs, static_cast<int64_t>(times * static_cast<double>(kMs)), is_whole);
    }
  }
  double Factor() const { return correction_.factor(); }

  Correction correction_;
};

TEST_F(CorrectionTest, WithoutProductsPredictionsStayAsTheyAre) {
  EXPECT_EQ(Factor(), 1);
  EXPECT_EQ(ExpectedNs(12345, &correction_), 12345);
  EXPECT_EQ(ExpectedNs(12345, nullptr), 12345);
}

// Within a factor of two after three products, within a tenth after twelve, in both directions.
TEST_F(CorrectionTest, ContentionIsLearnedAndUnlearned) {
  Take(4, 3);
  EXPECT_GE(Factor(), 2);
  Take(4, 9);
  EXPECT_NEAR(Factor(), 4, 0.4);
  EXPECT_NEAR(static_cast<double>(ExpectedNs(kMs, &correction_)), 4e6, 4e5);
  Take(1, 3);
  EXPECT_LE(Factor(), 2);
  Take(1, 9);
  EXPECT_NEAR(Factor(), 1, 0.1);
}

TEST_F(CorrectionTest, ADeviceFasterThanPredictedIsLearnedToo) {
  Take(0.25, 12);
  EXPECT_NEAR(Factor(), 0.25, 0.025);
}

TEST_F(CorrectionTest, OneProductMovesItLittle) {
  Take(1e6, 1);
  EXPECT_LE(Factor(), 1.5);
  Take(1e-6, 1);
  EXPECT_GE(Factor(), 0.9);
}

TEST_F(CorrectionTest, ItIsBoundedWhateverIsTold) {
  for (int i = 0; i < 100; ++i) {
    correction_.Observe(0, kLongest, true);
    correction_.Observe(-kLongest, kLongest, true);
  }
  EXPECT_EQ(Factor(), Correction::kMax);
  EXPECT_LE(ExpectedNs(kLongest, &correction_), int64_t{1} << 62);
  for (int i = 0; i < 100; ++i) {
    correction_.Observe(kLongest, 0, true);
    correction_.Observe(kLongest, -kLongest, true);
  }
  EXPECT_EQ(Factor(), 1 / Correction::kMax);
  EXPECT_GE(ExpectedNs(0, &correction_), 0);
}

// A product of 10 ns is predicted to take 2 ns: neither matters to its caller.
TEST_F(CorrectionTest, TimesTooShortForClocksSayNothing) {
  for (int i = 0; i < 10; ++i) correction_.Observe(2, 900, true);
  EXPECT_EQ(Factor(), 1);
}

// A product that was given up may have been about to end.
TEST_F(CorrectionTest, WhatWasGivenUpTakesNoLess) {
  Take(0.25, 40, /*is_whole=*/false);
  EXPECT_EQ(Factor(), 1);
  Take(4, 40, /*is_whole=*/false);
  EXPECT_NEAR(Factor(), 4, 0.1);
}

TEST_F(CorrectionTest, ProductsOfManyThreadsAreLearned) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this] { Take(4, 100); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NEAR(Factor(), 4, 0.1);
}

TEST(CorrectionsTest, KernelsAndShapesAreLearnedApart) {
  const ScriptedDevice device("one", {});
  Corrections corrections(device);
  const Kernel& kernel = Catalog(DeviceKind::kCpu)[1];
  const Problem problem = ProblemOf(512, 512, 512);
  Correction* const correction = corrections.Find(kernel, problem);
  ASSERT_NE(correction, nullptr);
  EXPECT_EQ(corrections.Find(kernel, ProblemOf(500, 500, 500)), correction);
  std::set<Correction*> all = {correction, corrections.Find(Catalog(DeviceKind::kCpu)[2], problem)};
  for (const Problem& other : {ProblemOf(512, 512, 0), ProblemOf(8, 8, 8), ProblemOf(8, 8, 8, 100),
                               ProblemOf(8, 4096, 4096)}) {
    all.insert(corrections.Find(kernel, other));
  }
  EXPECT_EQ(all.size(), 6U);
  Kernel stranger = kernel;
  stranger.position = size_t{1} << 40;
  EXPECT_EQ(corrections.Find(stranger, problem), nullptr);
}

}  // namespace
}  // namespace gemmd
