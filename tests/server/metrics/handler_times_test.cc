// SPDX-License-Identifier: Apache-2.0
//
// How long calls hold a thread of gRPC.
#include "server/metrics/handler_times.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "server/system/clock.h"

namespace gemmd {
namespace {

// From its construction to its destruction, on the clock that it is given.
TEST(HandlerTimerTest, AddsTheTimeForWhichItWasThere) {
  class SetClock final : public Clock {
   public:
    int64_t NowNs() const override { return now_ns; }
    int64_t now_ns = 1'000;
  } clock;
  HandlerTimes times;
  {
    const HandlerTimer timer(times, clock, HandlerOf("Explain"), 400);
    const HandlerTimer later(times, clock, HandlerOf("Get"), 500);
    EXPECT_EQ(times.oldest_hold_ns(), 400);
    clock.now_ns = 5'000'400;
  }
  EXPECT_EQ(times.oldest_hold_ns(), std::nullopt);
  const LatencyHistogram explain = times.Read()[static_cast<size_t>(HandlerOf("Explain"))];
  EXPECT_EQ(explain.count(), 1);
  EXPECT_EQ(explain.sum_ns, 5'000'000);
}

// A waiting thread uses no processor time.
TEST(HandlerTimerTest, AddsTheProcessorTimeOfItsThread) {
  const SteadyClock clock;
  HandlerTimes times;
  const auto longest_ns = [&](Handler handler) {
    return times.ReadLongestCpu()[static_cast<size_t>(handler)].first_ns;
  };
  const HandlerTiming waiting = {times, clock, HandlerOf("Get")};
  const HandlerTiming working = {times, clock, HandlerOf("Put")};
  const auto cpu_ns = [] {
    timespec cpu = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    return int64_t{cpu.tv_sec} * 1'000'000'000 + cpu.tv_nsec;
  };
  int64_t waiting_thread_ns = 0;
  std::thread([&] {
    const int64_t begun_ns = cpu_ns();
    {
      const HandlerTimer timer = waiting.Begin();
      std::thread([&] {
        const HandlerTimer inner = working.Begin();
        for (const int64_t until_ns = cpu_ns() + 50'000'000; cpu_ns() < until_ns;) {
        }
      }).join();
    }
    waiting_thread_ns = cpu_ns() - begun_ns;
  }).join();
  EXPECT_GE(longest_ns(HandlerOf("Put")), 50'000'000);
  EXPECT_LE(longest_ns(HandlerOf("Get")), waiting_thread_ns);
  EXPECT_GE(times.Read()[static_cast<size_t>(HandlerOf("Get"))].sum_ns, 50'000'000);
}

// In any order, and for each method separately.
TEST(HandlerTimesTest, KnowTheTwoLongest) {
  using Pair = std::pair<int64_t, int64_t>;
  HandlerTimes times;
  const auto longest_ns = [&] {
    const HandlerTimes::Longest longest =
        times.ReadLongestCpu()[static_cast<size_t>(HandlerOf("Put"))];
    return Pair(longest.first_ns, longest.second_ns);
  };
  const auto after = [&](int64_t cpu_ns) {
    times.Add(HandlerOf("Put"), 0, cpu_ns);
    times.Add(HandlerOf("Get"), 0, 1'000'000);
    return longest_ns();
  };
  EXPECT_EQ(longest_ns(), Pair(0, 0));
  EXPECT_EQ(after(5), Pair(5, 0));
  EXPECT_EQ(after(3), Pair(5, 3));
  EXPECT_EQ(after(2), Pair(5, 3));
  EXPECT_EQ(after(4), Pair(5, 4));
  EXPECT_EQ(after(5), Pair(5, 5));
  EXPECT_EQ(after(7), Pair(7, 5));
  EXPECT_EQ(after(9), Pair(9, 7));
}

// Handlers beyond the number that is tracked are still counted.
TEST(HandlerTimerTest, MayBeOneOfVeryMany) {
  const SteadyClock clock;
  HandlerTimes times;
  {
    std::deque<HandlerTimer> timers;
    for (size_t i = 0; i < HandlerTimes::kMaxHolds + 10; ++i) {
      timers.emplace_back(times, clock, HandlerOf("List"), clock.NowNs());
    }
    EXPECT_NE(times.oldest_hold_ns(), std::nullopt);
  }
  EXPECT_EQ(times.oldest_hold_ns(), std::nullopt);
  EXPECT_EQ(times.Read()[static_cast<size_t>(HandlerOf("List"))].count(),
            HandlerTimes::kMaxHolds + 10);
}

}  // namespace
}  // namespace gemmd
