// SPDX-License-Identifier: Apache-2.0
//
// Ends calls whose peer does not read its answers, so that what they hold is free again.
//
// gRPC tells nothing of a message that is on its way: neither how much of it has left, nor, before
// the end of the call, that its memory is no longer needed. So a peer has a time to begin and a
// rate at which it must read. Where the system tells what the peer of a connection has taken, a
// call ends sooner than by that: once nothing was taken for the time to begin.
#pragma once

#include <grpcpp/server_context.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

class SendWatch {
 public:
  struct Limits {
    // Without progress, and beside the time that the bytes take.
    absl::Duration timeout = absl::Seconds(10);
    int64_t least_bytes_per_second = int64_t{8} << 20;  // At which they must be read.
  };

  // The bytes that a peer, as gRPC names it, has taken of its connection since that began; nothing
  // where the system does not tell. Bytes may rest in buffers of the peer's system.
  using BytesTaken = std::function<std::optional<int64_t>(const std::string& peer)>;

  // So little is taken by whoever answers pings and reads nothing.
  static constexpr int64_t kLeastProgressBytes = int64_t{64} << 10;

  // What one call is sending. Watched from Begin to End.
  // Threads: one at a time.
  class Call {
   public:
    // Borrows both, which live until End: whoever holds a call that has ended may outlive them.
    Call(SendWatch& watch, grpc::CallbackServerContext& context)
        : watch_(watch), context_(context) {}
    virtual ~Call() { End(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // An answer of so many bytes is about to be handed to gRPC.
    void Begin(int64_t bytes) {
      is_sending_ = true;
      watch_.Begin(*this, bytes);
    }
    // It has left, or the call has ended.
    void End() {
      if (std::exchange(is_sending_, false)) watch_.End(*this);
    }

   protected:
    // For tests, whose contexts have no call.
    virtual std::string peer() const { return context_.peer(); }
    virtual void Cancel() { context_.TryCancel(); }

   private:
    friend class SendWatch;
    SendWatch& watch_;
    grpc::CallbackServerContext& context_;
    bool is_sending_ = false;
    // Guarded by the watch's lock:
    int64_t begun_ns_ = 0;
    int64_t due_ns_ = 0;       // When it should have left, had it begun at once.
    int64_t moved_ns_ = 0;     // When the connection's progress was last seen.
    int64_t taken_bytes_ = 0;  // As of then; -1 before the first look.
  };

  // Borrows the clock.
  SendWatch(
      const Limits& limits, const Clock& clock,
      BytesTaken taken = [](const std::string&) { return std::nullopt; })
      : limits_(limits), clock_(clock), taken_(std::move(taken)) {}

  // Cancels each call of whose answer nothing was taken for the time of the limits, or that should
  // have left, and returns how many those were. Where `timeout` is shorter it stands for that of
  // the limits, and where it is not known what is taken, no answer has longer.
  int EndSilent(absl::Duration timeout = absl::InfiniteDuration()) ABSL_LOCKS_EXCLUDED(mutex_);

  const Limits& limits() const { return limits_; }

 private:
  void Begin(Call& call, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(Call& call) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsSilent(Call& call, std::optional<int64_t> taken_bytes, int64_t patience_ns,
                int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  const BytesTaken taken_;
  Mutex mutex_;
  absl::flat_hash_set<Call*> sending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
