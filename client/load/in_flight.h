// SPDX-License-Identifier: Apache-2.0
//
// The calls of a run between their turn and their answer.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/load/load_clock.h"

namespace gemmd {

// Threads: any.
class InFlight {
 public:
  void Enter();

  // The run may be gone after this call.
  void Leave();

  // Waits until there are fewer than `most`, until that time or until a stop is asked for. Whether
  // it had to wait.
  bool WaitForRoom(int64_t most, int64_t until_ns, const StopRequests& stop);

  // Waits until there are none, until that time or until more than `stops` stops are asked for;
  // false in the last two cases.
  bool WaitForNone(int64_t until_ns, int stops, const StopRequests& stop);

  int64_t now() const;
  int64_t most() const;  // So far.

 private:
  mutable absl::Mutex mutex_;
  int64_t now_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t most_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
