// SPDX-License-Identifier: Apache-2.0
//
// Looks at what passes through the sockets of connections, and closes those that cost more than
// they bring. gRPC owns the sockets and has no hook for frames, windows, or bytes that wait for a
// socket: a call that is cancelled leaves its answer there until the connection ends.
//
// gRPC reads and writes by the functions recvmsg and sendmsg of the C library, and encrypts by
// SSL_read and SSL_write. The daemon has functions of these names, which the dynamic linker finds
// first: they call those of the libraries and look at the bytes. Descriptors that are not watched
// cost a look into a table. If gRPC is linked in another way, nothing is seen and no connection
// is closed; the log says so once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "server/system/mutex.h"
#include "server/system/token_bucket.h"
#include "server/wire/frame_meter.h"

namespace gemmd {

// Why connections were closed.
enum class CloseReason { kFrames, kStalled, kUnread };
inline constexpr size_t kCloseReasons = 3;
std::string_view NameOf(CloseReason reason);

// What the frames of all connections of a peer share. Threads: any.
struct FrameBudget {
  TokenBucket resets;
  QuestionBytes questions{QuestionBytes::kMaxBytesOfPeer, &OfAllPeers()};

  bool IsWhole(int64_t now_ns) { return resets.IsWhole(now_ns); }

 private:
  static QuestionBytes& OfAllPeers();
};

// The budgets of peers that have connections, or had some until what they did is forgiven. Threads:
// any.
template <typename Budget>
class PeerBudgets {
 public:
  // Those of no peer are forgotten whenever there are twice as many as the last time, so that this
  // takes constant time on average, however many peers there are.
  std::shared_ptr<Budget> Of(const std::string& peer, int64_t now_ns) {
    MutexLock lock(&mutex_);
    const auto known = budgets_.find(peer);
    if (known != budgets_.end()) return known->second;
    if (budgets_.size() >= forget_at_) {
      examined_ += static_cast<int64_t>(budgets_.size());
      absl::erase_if(budgets_, [now_ns](const auto& entry) {
        return entry.second.use_count() == 1 && entry.second->IsWhole(now_ns);
      });
      forget_at_ = std::max(kMinForgetAt, 2 * budgets_.size());
    }
    return budgets_.emplace(peer, std::make_shared<Budget>()).first->second;
  }

  // For tests: the budgets, and how often one was examined to be forgotten.
  size_t size() {
    MutexLock lock(&mutex_);
    return budgets_.size();
  }
  int64_t examined() {
    MutexLock lock(&mutex_);
    return examined_;
  }

 private:
  static constexpr size_t kMinForgetAt = 64;

  Mutex mutex_;
  absl::flat_hash_map<std::string, std::shared_ptr<Budget>> budgets_ ABSL_GUARDED_BY(mutex_);
  size_t forget_at_ ABSL_GUARDED_BY(mutex_) = kMinForgetAt;
  int64_t examined_ ABSL_GUARDED_BY(mutex_) = 0;
};

class SocketWatch {
 public:
  enum class Encryption { kNone, kTls };
  struct Connection;

  // That of the process.
  static SocketWatch& Get();

  // From now on the connection is watched, until it ends; it may have so many open calls. All
  // connections of one `peer` share what they may reset. `name` is gRPC's name of the peer's end;
  // empty if that end has no name of its own. Threads: any.
  void Add(int descriptor, const std::string& peer, const std::string& name, size_t max_calls,
           Encryption encryption);

  // The bytes that the peer's end with this name has acknowledged since its connection began;
  // nullopt if there is no such connection, or if nothing was seen to be sent. They may still be in
  // buffers of the peer's system. Threads: any.
  std::optional<int64_t> TakenBytes(const std::string& name) const;
  // The bytes that gRPC has read from each connection, by a number that no other connection has.
  // Threads: any.
  std::map<uint64_t, int64_t> ReceivedBytes() const;

  // The bounds of a connection in time.
  struct Limits {
    absl::Duration stall;              // Without progress of messages that have begun.
    absl::Duration patience;           // Without progress where bytes wait for a peer to read them.
    absl::Duration timeout;            // What a reader may be late,
    int64_t min_bytes_per_second = 0;  // which must read at this rate.
  };
  // Time that passes between two looks counts as at most this: a late look says nothing of a peer.
  static constexpr int64_t kMaxLookNs = 1'000'000'000;
  // Bytes of unfinished messages that a connection may hold for as long as it lives.
  static constexpr int64_t kFreeUnfinishedBytes = int64_t{64} << 10;
  // Less in one timeout is no progress. It is little beside any network, less than one record of
  // TLS, and much beside pings.
  static constexpr int64_t kMinProgressBytes = int64_t{8} << 10;
  // Nor is less than this part of the unfinished messages that a connection holds, so that holding
  // much costs its peer much, and a message arrives within as many timeouts.
  static constexpr int64_t kMinProgressPart = 32;

  // Closes connections that hold back the rest of messages though they may send, those whose bytes
  // wait for the peer at less than the rate, and those with too many frames. Call it at least once
  // in kMaxLookNs. Makes no system calls for connections on which nothing waits and no message is
  // unfinished, except that each look forgets those of a part of them that have ended. Threads: one
  // at a time.
  static constexpr int kLooksToForgetAll = 16;
  void CloseSlow(const Limits& limits, int64_t now_ns);

  // How many connections were closed. Threads: any.
  int64_t closed(CloseReason reason) const;

  // Warns if this process's calls of recvmsg do not come here.
  static void CheckEffective();

 private:
  SocketWatch() = default;

  int looks_ = 0;  // Of CloseSlow, modulo kLooksToForgetAll.
};

}  // namespace gemmd
