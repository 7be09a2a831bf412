// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "server/system/threads.h"

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

// The second thread is started for work that finds the first one busy.
TEST(ThreadPoolTest, ThreadsMayStartWithTheWork) {
  std::latch both(2);
  std::atomic<int> done = 0;
  {
    ThreadPool pool("lazy", 2, ThreadPool::Start::kWithWork);
    for (int i = 0; i < 2; ++i) {
      pool.Run([&] {
        both.arrive_and_wait();
        ++done;
      });
    }
  }
  EXPECT_EQ(done, 2);
}

TEST(ThreadPoolTest, DoesWhatIsLeftAndThenAllAtOnce) {
  ThreadPool pool("ends", 1);
  std::vector<std::thread::id> threads;
  const auto note = [&] { threads.push_back(std::this_thread::get_id()); };
  pool.Run([&] {
    note();
    pool.Run(note);
  });
  pool.Stop();
  ASSERT_EQ(threads.size(), 2U);
  EXPECT_EQ(threads[0], threads[1]);
  EXPECT_NE(threads[1], std::this_thread::get_id());
  pool.Run(note);
  ASSERT_EQ(threads.size(), 3U);
  EXPECT_EQ(threads[2], std::this_thread::get_id());
}

TEST(ThreadPoolTest, CallsNowAndThenWithAndWithoutWork) {
  std::atomic<int> calls = 0;
  ThreadPool pool("often", absl::Microseconds(1), [&] {
    ++calls;
    calls.notify_all();
  });
  const auto await_calls = [&](int more) {
    const int until = calls + more;
    for (int seen = calls; seen < until; seen = calls) calls.wait(seen);
  };
  await_calls(3);
  std::atomic<int> done = 0;
  for (int i = 0; i < 3; ++i) pool.Run([&] { ++done; });
  await_calls(3);
  pool.Stop();
  EXPECT_EQ(done, 3);
}

TEST(ThreadPoolTest, MayHaveNoThread) { EXPECT_EQ(ThreadPool("none", 0).size(), 0); }

}  // namespace
}  // namespace gemmd
