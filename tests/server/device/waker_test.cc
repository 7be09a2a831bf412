// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <thread>

#include "server/device/staging_area.h"

namespace gemmd {
namespace {

bool IsReadable(const Waker& waker) {
  pollfd file = {.fd = waker.descriptor(), .events = POLLIN, .revents = 0};
  return poll(&file, 1, 0) > 0;
}

TEST(WakerTest, IsReadableUntilTheWakeIsTaken) {
  const Waker waker;
  ASSERT_TRUE(waker.is_open());
  EXPECT_FALSE(waker.TakeWake());
  waker.Wake();
  waker.Wake();
  EXPECT_TRUE(IsReadable(waker));
  EXPECT_TRUE(waker.TakeWake());
  EXPECT_FALSE(IsReadable(waker));
  EXPECT_FALSE(waker.TakeWake());
}

// Otherwise a thread that waits for the descriptor and finds no wake would spin.
TEST(WakerTest, IsNotReadableWithoutAWake) {
  constexpr int kRounds = 2'000;
  const Waker waker;
  std::atomic<int> round = 0;
  std::atomic<int> woken = 0;
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (round.load() < i) std::this_thread::yield();
      waker.Wake();
      woken = i;
    }
  });
  int spins = 0;
  for (int i = 1; i <= kRounds; ++i) {
    round = i;
    while (woken.load() < i) {
      waker.TakeWake();
      std::this_thread::yield();
    }
    while (waker.TakeWake()) {
    }
    if (IsReadable(waker)) ++spins;
  }
  other.join();
  EXPECT_EQ(spins, 0);
}

}  // namespace
}  // namespace gemmd
