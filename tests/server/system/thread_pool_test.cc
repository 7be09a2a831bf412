// SPDX-License-Identifier: Apache-2.0
#include "server/system/thread_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace gemmd {
namespace {

TEST(ThreadPoolTest, DoesAllInTheOrderInWhichItComes) {
  std::vector<int> done;
  {
    ThreadPool pool("one", 1);
    for (int i = 0; i < 100; ++i) pool.Run([&done, i] { done.push_back(i); });
  }
  ASSERT_EQ(done.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
}

// Each of the two waits for the other one.
TEST(ThreadPoolTest, ThreadsWorkBesideEachOther) {
  std::latch both(2);
  std::atomic<int> done = 0;
  {
    ThreadPool pool("two", 2);
    EXPECT_EQ(pool.size(), 2);
    for (int i = 0; i < 2; ++i) {
      pool.Run([&] {
        both.arrive_and_wait();
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 2);
}

TEST(ThreadPoolTest, MayHaveNoThread) { EXPECT_EQ(ThreadPool("none", 0).size(), 0); }

}  // namespace
}  // namespace gemmd
