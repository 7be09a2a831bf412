// SPDX-License-Identifier: Apache-2.0
#include "kernels/fastest_time.h"

#include <gtest/gtest.h>

namespace gemmd {
namespace {

void Compute(double seconds) {
  const double end = ThreadSeconds() + seconds;
  while (ThreadSeconds() < end) {
  }
}

TEST(FastestTimeTest, ASlowFirstCallIsNotTheFastest) {
  int calls = 0;
  const double seconds = FastestSeconds([&] { Compute(calls++ == 0 ? 0.05 : 0); }, 4e-4);
  EXPECT_LT(seconds, 1e-3);
  EXPECT_GT(calls, 2);
}

TEST(FastestTimeTest, OfLongCallsTwoAreEnough) {
  int calls = 0;
  const double seconds = FastestSeconds([&] { Compute(++calls == 1 ? 0.03 : 0.02); }, 1e-3);
  EXPECT_GE(seconds, 0.02);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace gemmd
