// SPDX-License-Identifier: Apache-2.0
//
// Sends the calls of an open loop when they are due, as far as the limit of calls in flight lets
// them pass, and counts those that it kept back to the end.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/load/arrivals.h"
#include "client/load/in_flight.h"
#include "client/load/load_clock.h"

namespace gemmd {

struct OpenLoop {
  ArrivalPlan arrivals = {};
  int64_t most_in_flight = 10000;  // Calls beyond wait, which is counted as blocked time.
};

// When a run counts its calls. Times are of the monotone clock.
struct LoadWindow {
  int64_t start_ns = 0;  // Start of the warm-up.
  int64_t from_ns = 0;
  int64_t to_ns = 0;
  int64_t count = 0;  // Most calls due within the window; 0: as many as come.
};

class OpenSender {
 public:
  struct Due {
    int64_t intended_ns = 0;
    int64_t admitted_ns = 0;  // The same time as in CallSample.
  };

  // All of them outlive the sender. `send` starts a call that has entered `in_flight`; two threads
  // call it.
  OpenSender(const OpenLoop& loop, const LoadWindow& window, const StopRequests& stop,
             InFlight& in_flight, std::function<void(const Due&)> send);

  // Sends until the last call, the end of the window or a stop. Blocks.
  void Run();

  // What is known after Run(): calls of the window that were due before it ended and were not sent;
  // whether the calls ended before the window; when the next would have been due.
  int64_t unsent() const { return unsent_; }
  bool is_out_of_calls() const { return is_out_of_calls_; }
  int64_t next_due_ns() const { return next_due_ns_; }

 private:
  void SendWhatIsDue(int64_t later_ns);
  std::optional<Due> Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NextDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountUnsent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const OpenLoop& loop_;
  const LoadWindow& window_;
  const StopRequests& stop_;
  InFlight& in_flight_;
  const std::function<void(const Due&)> send_;

  // State of the two senders.
  absl::Mutex mutex_;
  Arrivals arrivals_ ABSL_GUARDED_BY(mutex_);
  int64_t due_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t counted_ ABSL_GUARDED_BY(mutex_) = 0;       // Calls of the window, the one due included.
  int64_t freed_ns_ ABSL_GUARDED_BY(mutex_) = 0;      // When the limit last let a call pass.
  bool is_planned_ ABSL_GUARDED_BY(mutex_) = true;    // Whether the call due belongs to the run.
  bool is_given_up_ ABSL_GUARDED_BY(mutex_) = false;  // By a stop or the end of the window.

  // Results of Run().
  int64_t unsent_ = 0;
  bool is_out_of_calls_ = false;
  int64_t next_due_ns_ = 0;
};

}  // namespace gemmd
