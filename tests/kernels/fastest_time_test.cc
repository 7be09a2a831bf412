// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/host_rates.h"

namespace gemmd {
namespace {

// A clock that shows the times of calls, which take as long as they are told.
class FastestTimeTest : public testing::Test {
 protected:
  template <typename SecondsOfCall>
  double Fastest(const SecondsOfCall& seconds_of_call, double max_seconds) {
    return FastestSeconds([&] { now_ += seconds_of_call(calls_++); }, max_seconds,
                          [&] { return now_; });
  }

  double now_ = 1e3;
  int calls_ = 0;
};

TEST_F(FastestTimeTest, ASlowFirstCallIsNotTheFastest) {
  const double seconds = Fastest([](int call) { return call == 0 ? 0.05 : 1e-7; }, 4e-4);
  EXPECT_NEAR(seconds, 1e-7, 1e-10);
  EXPECT_GT(calls_, 2);
}

TEST_F(FastestTimeTest, CallsTooShortForTheClockAreTimedManyAtOnce) {
  EXPECT_NEAR(Fastest([](int) { return 1e-8; }, 4e-4), 1e-8, 1e-11);
  EXPECT_GT(calls_, 1000);
}

TEST_F(FastestTimeTest, OfLongCallsTwoAreEnough) {
  EXPECT_NEAR(Fastest([](int call) { return call == 0 ? 0.03 : 0.02; }, 1e-3), 0.02, 1e-6);
  EXPECT_EQ(calls_, 2);
}

// One call in three is interrupted by other work.
TEST_F(FastestTimeTest, SlowCallsBesideFastOnesDoNotCount) {
  EXPECT_NEAR(Fastest([](int call) { return call % 3 == 2 ? 1e-4 : 3e-4; }, 1e-2), 1e-4, 1e-9);
}

// No two calls agree.
TEST_F(FastestTimeTest, EndsWhenTheTimeIsOver) {
  Fastest([](int call) { return call == 0 ? 1e-3 : 1e-3 / call; }, 1e-2);
  EXPECT_LT(now_ - 1e3, 2e-2);
}

}  // namespace
}  // namespace gemmd
