// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/recent_problems.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace gemmd {
namespace {

constexpr CudaRow kRow = {};
constexpr CudaRow kOtherRow = {};

Problem ProblemOf(int64_t m) {
  Problem problem;
  problem.m = m;
  problem.n = problem.k = 64;
  return problem;
}

LaunchKey KeyOf(const Problem& problem) {
  return {.row = &kRow, .gpu = 1, .multiprocessors = 132, .problem = &problem};
}

std::shared_ptr<const int64_t> Boxed(int64_t value) {
  return std::make_shared<const int64_t>(value);
}

TEST(RecentProblemsTest, FindsWhatItKeeps) {
  RecentProblems<int64_t> recent;
  const Problem problem = ProblemOf(8);
  EXPECT_EQ(recent.Find(KeyOf(problem)), nullptr);
  recent.Keep(KeyOf(problem), Boxed(7));
  const Problem same = problem;
  ASSERT_NE(recent.Find(KeyOf(same)), nullptr);
  EXPECT_EQ(*recent.Find(KeyOf(same)), 7);
}

TEST(RecentProblemsTest, NothingOfAKeyMayDiffer) {
  RecentProblems<int64_t> recent;
  const Problem problem = ProblemOf(8);
  recent.Keep(KeyOf(problem), Boxed(7));
  LaunchKey key = KeyOf(problem);
  key.row = &kOtherRow;
  EXPECT_EQ(recent.Find(key), nullptr) << "row";
  key = KeyOf(problem);
  key.gpu = 0;
  EXPECT_EQ(recent.Find(key), nullptr) << "GPU";
  key = KeyOf(problem);
  key.multiprocessors = 114;
  EXPECT_EQ(recent.Find(key), nullptr) << "multiprocessors";
  // None of these changes the place of the look-up.
  Problem other = problem;
  other.alpha = 2;
  EXPECT_EQ(recent.Find(KeyOf(other)), nullptr) << "alpha";
  other = problem;
  other.d.order = Order::kColumnMajor;
  EXPECT_EQ(recent.Find(KeyOf(other)), nullptr) << "order of D";
  other = problem;
  other.b.batch_stride_bytes = 512;
  EXPECT_EQ(recent.Find(KeyOf(other)), nullptr) << "stride of B";
  EXPECT_NE(recent.Find(KeyOf(problem)), nullptr);
}

int64_t Found(const RecentProblems<int64_t>& recent, int64_t count) {
  int64_t found = 0;
  for (int64_t m = 0; m < count; ++m) {
    const Problem problem = ProblemOf(m);
    const std::shared_ptr<const int64_t> value = recent.Find(KeyOf(problem));
    if (value == nullptr) continue;
    EXPECT_EQ(*value, m);
    ++found;
  }
  return found;
}

TEST(RecentProblemsTest, FewShapesAllStayAndManyAreBounded) {
  RecentProblems<int64_t> recent;
  constexpr int64_t kFew = 32;
  constexpr int64_t kMany = 4096;
  for (int64_t m = 0; m < kFew; ++m) recent.Keep(KeyOf(ProblemOf(m)), Boxed(m));
  EXPECT_EQ(Found(recent, kFew), kFew);
  for (int64_t m = kFew; m < kMany; ++m) recent.Keep(KeyOf(ProblemOf(m)), Boxed(m));
  EXPECT_EQ(Found(recent, kMany), int64_t{RecentProblems<int64_t>::kCapacity});
  EXPECT_NE(recent.Find(KeyOf(ProblemOf(kMany - 1))), nullptr) << "the latest";
}

TEST(RecentProblemsTest, ThreadsShareIt) {
  RecentProblems<int64_t> recent;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int64_t m = 0; m < 1000; ++m) {
        recent.Keep(KeyOf(ProblemOf(m)), Boxed(m));
        const std::shared_ptr<const int64_t> value = recent.Find(KeyOf(ProblemOf(m % 32)));
        if (value != nullptr) {
          EXPECT_EQ(*value, m % 32);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gemmd
