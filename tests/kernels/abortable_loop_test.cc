// SPDX-License-Identifier: Apache-2.0
#include "kernels/matrix/abortable_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>

#include "kernels/cpu/host.h"

namespace gemmd {
namespace {

TEST(AbortableLoopTest, ThrowsWhatAThreadThrows) {
  SetThreads(3);
  for (const bool is_shared : {false, true}) {
    for (const int64_t thrower : {0, 5'000, 9'999}) {
      std::atomic<int> calls = 0;
      const auto body = [&](int64_t index) {
        if (index == thrower) throw std::bad_alloc();
        ++calls;
      };
      EXPECT_THROW(ForEachUnlessAborted(nullptr, is_shared, 10'000, body), std::bad_alloc);
      EXPECT_LT(calls, 10'000);
    }
  }
  SetThreads(1);
}

}  // namespace
}  // namespace gemmd
