// SPDX-License-Identifier: Apache-2.0
//
// Ends jobs when their deadlines pass, with no other event needed: a thread that calls
// Scheduler::EndExpired.
#pragma once

#include <thread>

#include "absl/base/thread_annotations.h"
#include "server/scheduling/scheduler.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

class ExpiryTimer {
 public:
  // Borrows the scheduler, to which nothing has been submitted yet, and its clock; both outlive the
  // timer. The clock must tell true time, since the timer sleeps by it.
  ExpiryTimer(Scheduler& scheduler, const Clock& clock);

  // Nothing may be submitted any longer.
  ~ExpiryTimer();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  Scheduler& scheduler_;
  const Clock& clock_;
  Mutex mutex_;
  bool is_earlier_ ABSL_GUARDED_BY(mutex_) = false;  // There is an earlier deadline.
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gemmd
