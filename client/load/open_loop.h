// SPDX-License-Identifier: Apache-2.0
//
// An open loop: when calls are due, and the threads that send them subject to the limit of calls in
// flight. Calls held back by the limit until the end are counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "client/load/client_machine.h"
#include "client/matrix/random_matrix.h"

namespace gemmd {

// Due times of an open loop are fixed before the first call, independent of the server.

// Calls per second: changes linearly from `from` at the start to `to` at `ramp_ns`, then constant.
// Both positive.
struct RateCurve {
  double from = 0;
  double to = 0;
  int64_t ramp_ns = 0;

  // The time by which `calls` (a real number) calls are due.
  double TimeOfNs(double calls) const;
};

struct ArrivalPlan {
  RateCurve rate = {};
  bool is_poisson = false;  // Independent calls at that rate, else evenly spaced ones.
  uint64_t seed = 1;
  // If not empty: the gap before each call, repeated; the rate is then ignored.
  std::vector<int64_t> replay_gaps_ns = {};
};

// The infinite sequence of due times since the start.
class Arrivals {
 public:
  // Precondition: a positive rate, or at least one positive gap.
  explicit Arrivals(ArrivalPlan plan) : plan_(std::move(plan)), random_(plan_.seed) {}

  int64_t NextNs();

 private:
  ArrivalPlan plan_;
  SplitMix random_;
  double calls_ = 0;  // Due so far; with Poisson arrivals the sum of exponential variates.
  size_t next_gap_ = 0;
  int64_t replay_ns_ = 0;
  bool is_first_ = true;
};

// Parses gaps, one per line: seconds, or a time such as 500us; # begins a comment. Errors:
// InvalidArgument, naming the line, or if no gap is positive.
absl::StatusOr<std::vector<int64_t>> ParseGaps(absl::string_view text);

// Counts the calls of a run between their turn and their answer. Thread-safe.
class InFlight {
 public:
  void Enter();

  // The run may be destroyed after this call.
  void Leave();

  // Waits until fewer than `max_in_flight` calls are in flight, until `until_ns`, or until a stop
  // request. Returns whether it had to wait.
  bool WaitForRoom(int64_t max_in_flight, int64_t until_ns, const StopRequests& stop);

  // Waits until no call is in flight, until `until_ns`, or until there are more than `stops` stop
  // requests; returns false in the last two cases.
  bool WaitForNone(int64_t until_ns, int stops, const StopRequests& stop);

  int64_t now() const;
  int64_t max_in_flight() const;  // The max so far.

 private:
  mutable absl::Mutex mutex_;
  int64_t now_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t max_ ABSL_GUARDED_BY(mutex_) = 0;
};

struct OpenLoop {
  ArrivalPlan arrivals = {};
  int64_t max_in_flight = 10000;  // Further calls wait; the wait counts as blocked time.
};

// When a run counts its calls. Times are of the monotonic clock.
struct LoadWindow {
  int64_t start_ns = 0;  // Start of the warm-up.
  int64_t from_ns = 0;
  int64_t to_ns = 0;
  int64_t count = 0;  // Max calls due within the window; 0: unlimited.
};

class OpenSender {
 public:
  // Sends a call; the times are those of CallSample.
  using Send = std::function<void(int64_t intended_ns, int64_t admitted_ns)>;

  // The arguments must outlive the sender. `send` starts a call already entered in `in_flight`; two
  // threads call it.
  OpenSender(const OpenLoop& loop, const LoadWindow& window, const StopRequests& stop,
             InFlight& in_flight, Send send);

  // Sends until the last call, the end of the window or a stop. Blocks.
  void Run();

  // Valid after Run(): the number of calls due in the window but not sent; whether the call limit
  // ended the run before the window did; when the next call would have been due.
  int64_t unsent() const { return unsent_; }
  bool is_out_of_calls() const { return is_out_of_calls_; }
  int64_t next_due_ns() const { return next_due_ns_; }

 private:
  void SendWhatIsDue(int64_t later_ns);
  std::optional<int64_t> Admit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NextDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountUnsent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const OpenLoop& loop_;
  const LoadWindow& window_;
  const StopRequests& stop_;
  InFlight& in_flight_;
  const Send send_;

  // State of the two senders.
  absl::Mutex mutex_;
  Arrivals arrivals_ ABSL_GUARDED_BY(mutex_);
  int64_t due_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t counted_ ABSL_GUARDED_BY(mutex_) = 0;       // Calls of the window, the one due included.
  int64_t freed_ns_ ABSL_GUARDED_BY(mutex_) = 0;      // When the limit last let a call pass.
  bool is_planned_ ABSL_GUARDED_BY(mutex_) = true;    // Whether the call due belongs to the run.
  bool is_given_up_ ABSL_GUARDED_BY(mutex_) = false;  // Due to a stop or the end of the window.

  // Results of Run().
  int64_t unsent_ = 0;
  bool is_out_of_calls_ = false;
  int64_t next_due_ns_ = 0;
};

}  // namespace gemmd
