// SPDX-License-Identifier: Apache-2.0
//
// Checks of answers are work like products: they wait for threads of the host in fair turns of
// their callers, by priority and deadline (DeviceQueue), and each has a predicted time, which its
// product is admitted with.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
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
#include "server/product/prediction.h"
#include "server/product/queue.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

// Threads: any.
class CheckQueue {
 public:
  // Checks that are expected to take longer have threads of their own, so that no short one waits
  // for the end of a long one.
  static constexpr int64_t kShortNs = 100'000'000;

  // With so many threads, at least one for short and one for long checks. Borrows the clock.
  CheckQueue(int threads, const Clock& clock);

  // The time of a check that is still to come or that runs. Given back by the destructor. Movable.
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
    // Whether the check is long, its priority, caller and connection.
    using Flow = std::tuple<bool, Priority, std::string, uint64_t>;
    CheckQueue* queue_ = nullptr;
    Flow flow_;
    int64_t expected_ns_ = 0;
  };

  // Claims the time of a check whose product is not computed yet. `wait_ns` becomes the time that
  // the check is expected to wait for others of its length: all those of its own connection, as
  // much of each other connection and each other caller as comes before it in fair turns, and all
  // of normal priority if its own is low.
  Claim Enter(const FlowId& flow, Priority priority, int64_t expected_ns, int64_t& wait_ns)
      ABSL_LOCKS_EXCLUDED(mutex_);

  struct Check : DeviceQueue::Job {
    // Called once: with OK from a thread of the queue, to check until the flag is set; otherwise
    // with the reason why the check never begins, Cancelled or DeadlineExceeded.
    using Work = absl::AnyInvocable<void(const absl::Status& status, AbortFlag abort) &&>;

    std::string caller;
    Work work;

    // The queue's own.
    bool is_long = false;
    bool is_running = false;
    std::atomic<bool> abort = false;
    std::list<std::unique_ptr<Check>>::iterator place;
  };

  // The check waits for its turn. Its id, predicted time, deadline, priority, share, flow and work
  // are set.
  void Add(std::unique_ptr<Check> check) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends checks early: those that wait before this returns, those that run as soon as they look.
  void Cancel(absl::Span<const JobId> ids) ABSL_LOCKS_EXCLUDED(mutex_);
  // All, and those that come later.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Checks = std::list<std::unique_ptr<Check>>;
  struct Lane {
    Lane(const char* name, int count) : threads(name, count, ThreadPool::Start::kWithWork) {}
    DeviceQueue queue;
    ThreadPool threads;
  };

  Lane& LaneOf(bool is_long) { return is_long ? long_ : short_; }
  void RunNext(Lane& lane) ABSL_LOCKS_EXCLUDED(mutex_);
  template <typename IsMeant>
  void End(const IsMeant& is_meant, Checks& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Drop(Checks dropped, const absl::Status& why);

  const Clock& clock_;
  Mutex mutex_;
  Checks checks_ ABSL_GUARDED_BY(mutex_);
  absl::btree_map<Claim::Flow, int64_t> claimed_ns_ ABSL_GUARDED_BY(mutex_);
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // Their queues are guarded by the mutex. The threads end before all else.
  Lane short_;
  Lane long_;
};

}  // namespace gemmd
