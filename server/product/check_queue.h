// SPDX-License-Identifier: Apache-2.0
//
// Queues checks of answers for threads of the host. Checks are scheduled like products: in fair
// turns of their callers, by priority and deadline (DeviceQueue). Each has a predicted time, which
// counts when its product is admitted. A check is done in slices, and after each slice its thread
// continues with the check whose turn it is, so no check waits for the end of a long one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/matrix/abort.h"
#include "server/product/job_table.h"
#include "server/product/prediction.h"
#include "server/product/queue.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

// Threads: any.
class CheckQueue {
 public:
  // Checks that are expected to take longer have their own threads, so that no short check waits
  // for a long one.
  static constexpr int64_t kShortNs = 100'000'000;

  // Runs `threads` threads, at least one each for short and for long checks. Borrows the clock.
  CheckQueue(int threads, const Clock& clock);

  // The claimed time of a check that waits for its product or runs. The destructor releases it.
  // Movable.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept { *this = std::move(other); }
    Claim& operator=(Claim&& other) noexcept {
      std::swap(queue_, other.queue_);
      std::swap(flow_, other.flow_);
      std::swap(expected_ns_, other.expected_ns_);
      other.Release();
      return *this;
    }
    ~Claim() { Release(); }

    void Release();

   private:
    friend class CheckQueue;
    // Whether the check is long; its priority, caller and connection.
    using Flow = std::tuple<bool, Priority, std::string, uint64_t>;
    CheckQueue* queue_ = nullptr;
    Flow flow_;
    int64_t expected_ns_ = 0;
  };

  // Claims the time of a check whose product is not computed yet. Sets `wait_ns` to the time that
  // the check is expected to wait for checks of its length: for all those of its own connection;
  // for those of other connections and callers as far as they precede it in fair turns; and, if its
  // priority is low, for all those of normal priority.
  Claim Enter(const FlowId& flow, Priority priority, int64_t expected_ns, int64_t& wait_ns)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Check : DeviceQueue::Job {
    // Called with OK, from a thread of the queue, to do the next slice of the check, about 0.1 s at
    // most and less once the flag is set, until it returns that the check has ended; or with
    // Cancelled or DeadlineExceeded, once, if the check ends between slices or never begins. Then
    // the result is ignored.
    using Work = absl::AnyInvocable<bool(const absl::Status& status, AbortFlag abort)>;

    std::string caller;
    Work work;

    // Used by the queue itself.
    bool is_long = false;
    bool is_running = false;
    std::atomic<bool> abort = false;
    Check* next_of_slot = nullptr;
  };

  // Queues the check, whose id, predicted time, deadline, priority, share, flow and work are set.
  void Add(std::unique_ptr<Check> check) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends checks early: waiting ones before this returns, running ones when they next look at their
  // abort flag.
  void Cancel(absl::Span<const JobId> ids) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all checks early, present and later ones.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Checks = std::vector<std::unique_ptr<Check>>;
  struct Lane {
    Lane(const char* name, int count) : threads(name, count, ThreadPool::Start::kWithWork) {}
    DeviceQueue queue;
    ThreadPool threads;
  };

  Lane& LaneOf(bool is_long) { return is_long ? long_ : short_; }
  // Runs slices until a check has ended or none is left.
  void Run(Lane& lane) ABSL_LOCKS_EXCLUDED(mutex_);
  // The next check. `last`, if not null, has just run for `ran_ns` and has not ended.
  Check* TakeNext(Lane& lane, Check* last, int64_t ran_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(Check& check, Checks& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Drop(Checks dropped, const absl::Status& why);

  const Clock& clock_;
  Mutex mutex_;
  JobTable<Check, &Check::next_of_slot> checks_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<Claim::Flow, int64_t> claimed_ns_ ABSL_GUARDED_BY(mutex_);
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // Their queues are guarded by the mutex. Their threads end before all other members are
  // destroyed.
  Lane short_;
  Lane long_;
};

}  // namespace gemmd
