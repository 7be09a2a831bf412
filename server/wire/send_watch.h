// SPDX-License-Identifier: Apache-2.0
//
// Ends calls whose peer does not read its answers, so that what they hold is free again.
//
// gRPC tells nothing of a message that is on its way: neither how much of it has left, nor, before
// the end of the call, that its memory is no longer needed. So a peer has a time to begin and a
// rate at which it must read.
#pragma once

#include <grpcpp/server_context.h>

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

class SendWatch {
 public:
  struct Limits {
    absl::Duration timeout = absl::Seconds(10);         // Beside the time that the bytes take.
    int64_t least_bytes_per_second = int64_t{8} << 20;  // At which they must be read.
  };

  // What one call is sending. Watched from Begin to End.
  // Threads: one at a time.
  class Call {
   public:
    // Borrows both. The context lives until End.
    Call(SendWatch& watch, grpc::CallbackServerContext& context)
        : watch_(watch), context_(context) {}
    ~Call() { End(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // An answer of so many bytes is about to be handed to gRPC.
    void Begin(int64_t bytes) { watch_.Begin(*this, bytes); }
    // It has left, or the call has ended.
    void End() { watch_.End(*this); }

   private:
    friend class SendWatch;
    SendWatch& watch_;
    grpc::CallbackServerContext& context_;
    int64_t due_ns_ =
        0;  // Guarded by the watch's lock: when it should have left, had it begun at once.
  };

  // Borrows the clock.
  SendWatch(const Limits& limits, const Clock& clock) : limits_(limits), clock_(clock) {}

  // Cancels each call whose answer should have left, and returns how many those were. `timeout`
  // stands for that of the limits where it is shorter.
  int EndSilent(absl::Duration timeout = absl::InfiniteDuration()) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits& limits() const { return limits_; }

 private:
  void Begin(Call& call, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  Mutex mutex_;
  absl::flat_hash_set<Call*> sending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
