// SPDX-License-Identifier: Apache-2.0
//
// Checks that pass, that fail, and that never end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "server/system/threads.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/status_matchers.h"

namespace gemmd {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kSilence = absl::Seconds(30);

class LifeCheckTest : public testing::Test {
 protected:
  LifeCheck::Options Quick() {
    return {.interval = absl::Milliseconds(1), .longest_silence = kSilence, .on_alive = [this] {
              MutexLock lock(&mutex_);
              ++alive_;
            }};
  }
  void AwaitAlive(int times) {
    MutexLock lock(&mutex_);
    const auto is_so = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return alive_ >= times; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(is_so, kPatience));
  }
  void Pass(absl::Duration time) { clock_.Advance(absl::ToInt64Nanoseconds(time)); }

  FakeClock clock_;
  Mutex mutex_;
  int alive_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(LifeCheckTest, TellsOfEachCheckThatPasses) {
  const LifeCheck check(
      Quick(), [] { return absl::OkStatus(); }, clock_);
  AwaitAlive(3);
  EXPECT_THAT(check.status(), IsOk());
}

TEST_F(LifeCheckTest, FailsAfterASilence) {
  std::atomic<int> calls = 0;
  const LifeCheck check(
      Quick(),
      [&calls] {
        ++calls;
        return absl::DeadlineExceededError("no answer");
      },
      clock_);
  EXPECT_THAT(check.status(), IsOk());
  while (calls < 2) sched_yield();  // Then the first answer is known.
  Pass(kSilence + absl::Seconds(1));
  EXPECT_THAT(check.status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("for 31s: no answer")));
  MutexLock lock(&mutex_);
  EXPECT_EQ(alive_, 0);
}

TEST_F(LifeCheckTest, IsAsQuickAsTheWatchdogThatItFeeds) {
  LifeCheck::Options options;
  options.TieTo(absl::InfiniteDuration());
  EXPECT_EQ(options.interval, absl::Seconds(5));
  EXPECT_EQ(options.longest_turn, absl::Seconds(30));
  options.TieTo(absl::Seconds(9));
  EXPECT_EQ(options.interval, absl::Seconds(3));
  EXPECT_EQ(options.longest_turn, absl::Milliseconds(4500));
}

TEST_F(LifeCheckTest, SeesACheckThatDoesNotEnd) {
  std::atomic<bool> may_end = false;
  {
    const LifeCheck check(
        Quick(),
        [&may_end] {
          while (!may_end) sched_yield();
          return absl::OkStatus();
        },
        clock_);
    Pass(kSilence + absl::Seconds(1));
    EXPECT_THAT(check.status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("still running")));
    may_end = true;
    AwaitAlive(1);
  }
}

// The requester does not wait while a call hangs, and a request made during a call is not lost.
TEST(OnRequestTest, NobodyWaitsForACall) {
  Mutex mutex;
  int begun = 0;
  bool may_end = false;
  const auto await = [&mutex](auto&& is_so) {
    MutexLock lock(&mutex);
    ASSERT_TRUE(mutex.AwaitWithTimeout(is_so, kPatience));
  };
  OnRequest requests([&] {
    MutexLock lock(&mutex);
    ++begun;
    mutex.Await([&] { return may_end; });
  });
  requests.Ask();
  await([&] { return begun == 1; });
  requests.Ask();
  {
    MutexLock lock(&mutex);
    EXPECT_EQ(begun, 1);
    may_end = true;
  }
  await([&] { return begun == 2; });
}

}  // namespace
}  // namespace gemmd
