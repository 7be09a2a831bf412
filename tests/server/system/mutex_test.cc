// SPDX-License-Identifier: Apache-2.0
#include "server/system/mutex.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/patience.h"

namespace gemmd {
namespace {

// A thread that changes something and then waits does not unlock in between.
TEST(MutexTest, WhoBeginsToWaitWakesThoseThatWaitForWhatHeChanged) {
  for (const bool is_limited : {false, true}) {
    Mutex mutex;
    bool is_waiting = false, is_changed = false, is_over = false;
    bool was_seen = false;
    std::thread other([&] {
      MutexLock lock(&mutex);
      is_waiting = true;
      was_seen = mutex.AwaitWithTimeout([&] { return is_changed; }, kPatience);
      is_over = true;
    });
    {
      MutexLock lock(&mutex);
      mutex.Await([&] { return is_waiting; });
      is_changed = true;
      const auto is_seen = [&] { return is_over; };
      if (is_limited) {
        mutex.AwaitWithTimeout(is_seen, kPatience);
      } else {
        mutex.Await(is_seen);
      }
    }
    other.join();
    EXPECT_TRUE(was_seen) << is_limited;
  }
}

}  // namespace
}  // namespace gemmd
