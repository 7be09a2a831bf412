// SPDX-License-Identifier: Apache-2.0
//
// A clock that moves only when the test moves it. Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

#include "server/system/clock.h"

namespace gemmd {

class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(); }
  void Advance(int64_t duration_ns) { now_ns_.fetch_add(duration_ns); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

}  // namespace gemmd
