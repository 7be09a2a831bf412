// SPDX-License-Identifier: Apache-2.0
//
// What is learned from the times that products took, and what never can be.
#include "server/product/prediction.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "kernels/catalog.h"
#include "tests/server/device/fake_device.h"
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

class PredictionCorrectionTest : public testing::Test {
 protected:
  // Products that all take `times` what is predicted.
  void Take(double times, int products, size_t device = 0) {
    for (int i = 0; i < products; ++i) {
      correction_.Observe(device, kernel_, problem_, kMs,
                          static_cast<int64_t>(times * static_cast<double>(kMs)));
    }
  }
  double Factor(size_t device = 0) const { return correction_.Factor(device, kernel_, problem_); }

  FakeDevice one_{"one", {}};
  FakeDevice two_{"two", {}};
  std::vector<ServedDevice> served_ = {{&one_, {}}, {&two_, {}}};
  PredictionCorrection correction_{served_};
  const Kernel& kernel_ = *(Catalog(DeviceKind::kCpu).begin() + 1);
  const Problem problem_ = ProblemOf(512, 512, 512);
};

TEST_F(PredictionCorrectionTest, WithoutProductsPredictionsStayAsTheyAre) {
  EXPECT_EQ(Factor(), 1);
  EXPECT_EQ(correction_.Correct(0, kernel_, problem_, 12345), 12345);
}

// Within twice the truth after three products, within a tenth after twelve, both ways.
TEST_F(PredictionCorrectionTest, ContentionIsLearnedAndUnlearned) {
  Take(4, 3);
  EXPECT_GE(Factor(), 2);
  Take(4, 9);
  EXPECT_NEAR(Factor(), 4, 0.4);
  EXPECT_NEAR(static_cast<double>(correction_.Correct(0, kernel_, problem_, kMs)), 4e6, 4e5);
  Take(1, 3);
  EXPECT_LE(Factor(), 2);
  Take(1, 9);
  EXPECT_NEAR(Factor(), 1, 0.1);
}

TEST_F(PredictionCorrectionTest, ADeviceFasterThanPredictedIsLearnedToo) {
  Take(0.25, 12);
  EXPECT_NEAR(Factor(), 0.25, 0.025);
}

TEST_F(PredictionCorrectionTest, OneProductMovesItLittle) {
  Take(1e6, 1);
  EXPECT_LE(Factor(), 1.5);
  Take(1e-6, 1);
  EXPECT_GE(Factor(), 0.9);
}

TEST_F(PredictionCorrectionTest, ItIsBoundedWhateverIsTold) {
  for (int i = 0; i < 100; ++i) {
    correction_.Observe(0, kernel_, problem_, 0, kLongest);
    correction_.Observe(0, kernel_, problem_, -kLongest, kLongest);
  }
  EXPECT_EQ(Factor(), PredictionCorrection::kMost);
  EXPECT_LE(correction_.Correct(0, kernel_, problem_, kLongest), int64_t{1} << 62);
  for (int i = 0; i < 100; ++i) {
    correction_.Observe(0, kernel_, problem_, kLongest, 0);
    correction_.Observe(0, kernel_, problem_, kLongest, -kLongest);
  }
  EXPECT_EQ(Factor(), 1 / PredictionCorrection::kMost);
  EXPECT_GE(correction_.Correct(0, kernel_, problem_, 0), 0);
}

// A product of 10 ns is predicted as 2 ns: neither is what its caller waits for.
TEST_F(PredictionCorrectionTest, TimesTooShortForClocksSayNothing) {
  for (int i = 0; i < 10; ++i) correction_.Observe(0, kernel_, problem_, 2, 900);
  EXPECT_EQ(Factor(), 1);
}

TEST_F(PredictionCorrectionTest, DevicesKernelsAndShapesAreLearnedApart) {
  Take(4, 12);
  EXPECT_EQ(Factor(1), 1);
  EXPECT_EQ(correction_.Factor(0, Catalog(DeviceKind::kCpu)[2], problem_), 1);
  for (const Problem& other : {ProblemOf(512, 512, 0), ProblemOf(8, 8, 8), ProblemOf(8, 8, 8, 100),
                               ProblemOf(8, 4096, 4096)}) {
    EXPECT_EQ(correction_.Factor(0, kernel_, other), 1);
  }
}

TEST_F(PredictionCorrectionTest, WhatItDoesNotKnowIsNotCorrected) {
  Kernel stranger = kernel_;
  stranger.position = size_t{1} << 40;
  correction_.Observe(0, stranger, problem_, kMs, 4 * kMs);
  correction_.Observe(7, kernel_, problem_, kMs, 4 * kMs);
  EXPECT_EQ(correction_.Factor(0, stranger, problem_), 1);
  EXPECT_EQ(Factor(7), 1);
}

TEST_F(PredictionCorrectionTest, ProductsOfManyThreadsAreLearned) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this] { Take(4, 100); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NEAR(Factor(), 4, 0.1);
}

}  // namespace
}  // namespace gemmd
