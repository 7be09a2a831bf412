// SPDX-License-Identifier: Apache-2.0
//
// What one caller has under way, and how much time of the devices it had lately.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/system/mutex.h"

namespace gemmd {

struct MeterLimits {
  int64_t requests = std::numeric_limits<int64_t>::max();
  int64_t bytes = std::numeric_limits<int64_t>::max();
  // Time of devices that a caller earns in a minute, and has at most in store.
  int64_t device_ns_a_minute = std::numeric_limits<int64_t>::max();
};

class Meter : public std::enable_shared_from_this<Meter> {
 public:
  // One product of the caller, from its admission until it is answered. Movable.
  class Entry {
   public:
    Entry() = default;
    Entry(Entry&& other) noexcept;
    Entry& operator=(Entry&& other) noexcept;
    ~Entry() { Leave(); }

    // The product had so much time of its device, where it was expected to take another one. A
    // product that never ran had none. Once, and only before the entry ends.
    void Took(int64_t device_ns);

   private:
    friend class Meter;
    Entry(std::shared_ptr<Meter> meter, int64_t bytes, int64_t charged_ns)
        : meter_(std::move(meter)), bytes_(bytes), charged_ns_(charged_ns) {}
    void Leave();

    std::shared_ptr<Meter> meter_;
    int64_t bytes_ = 0;
    int64_t charged_ns_ = 0;  // Given back at the end where Took was not called.
  };

  // A product that is expected to take so much. A caller may overdraw its time by one product, so
  // that a long one can run at all. `retry_after_ns` is when its time suffices again; 0 where the
  // end of another of its products makes room.
  // Errors: ResourceExhausted, which names the limit. Threads: any.
  absl::StatusOr<Entry> Enter(const MeterLimits& limits, int64_t bytes, int64_t expected_ns,
                              int64_t now_ns, int64_t* retry_after_ns) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t requests() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Earn(int64_t most_ns, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Time that the caller has had and not yet earned; 0 where it may have a whole minute's.
  int64_t spent_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t earned_until_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gemmd
