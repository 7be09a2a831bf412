// SPDX-License-Identifier: Apache-2.0
//
// How long calls hold a thread of gRPC: meanwhile, the other calls that the thread polls for wait.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "server/product/counts.h"
#include "server/system/clock.h"
#include "server/system/mutex.h"

namespace gemmd {

// The names of the methods whose code gRPC calls, which holds a thread. That of a stream is called
// for each message, that of Get for each chunk.
inline constexpr std::string_view kHandlerNames[] = {
    "Multiply",
    "MultiplyStream",
    "ListKernels",
    "ListDevices",
    "Explain",
    "GetServerInfo",
    "GetStatistics",
    "ListInstructions",
    "DescribeFragment",
    "OpenSession",
    "Put",
    "Get",
    "List",
    "Describe",
    "Delete",
    "KeepAlive",
    "Compress",
    "ModelInfer",
    "ModelStreamInfer",
    "GRPCInferenceService",  // All other methods of KServe's protocol.
    "RestartDevice",
    "ListIncidents",
    "GetIncidentProduct",
    "ListSessions",
    "DropSession",
    "ServerReflectionInfo",
    "Health",  // Both methods of the service.
};
inline constexpr size_t kHandlers = std::size(kHandlerNames);

// An index of kHandlerNames.
enum class Handler : uint8_t {};
constexpr std::string_view NameOf(Handler handler) {
  return kHandlerNames[static_cast<size_t>(handler)];
}
// A name that is not in the list does not compile.
consteval Handler HandlerOf(std::string_view name) {
  size_t i = 0;
  while (kHandlerNames[i] != name) ++i;
  return static_cast<Handler>(i);
}

class HandlerTimes {
 public:
  using Snapshot = std::array<LatencyHistogram, kHandlers>;  // Indexed by Handler.

  // The two longest processor times of a method, 0 if there are fewer. A virtual machine counts the
  // time in which its host finds a page for the thread, measured as up to 23 ms per page: the
  // second longest time shows the method itself.
  struct Longest {
    int64_t first_ns = 0;
    int64_t second_ns = 0;
  };
  using LongestTimes = std::array<Longest, kHandlers>;  // Indexed by Handler.

  // How long a thread was held, and its processor time for that. Threads: any.
  void Add(Handler handler, int64_t held_ns, int64_t cpu_ns) ABSL_LOCKS_EXCLUDED(mutex_);
  Snapshot Read() const { return times_; }
  // On a busy machine, processor times are more useful.
  LongestTimes ReadLongestCpu() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Notes that a handler holds a thread of gRPC since `since_ns`. If more than kMaxHolds do at
  // once, the others are not noted and have no hold. Threads: any. Released by the one that took
  // it.
  using Hold = std::atomic<int64_t>*;
  Hold Take(int64_t since_ns);
  static void Release(Hold hold);
  static constexpr size_t kMaxHolds = 256;

  // The start of the longest current hold; nullopt if there is none.
  std::optional<int64_t> oldest_hold_ns() const;

 private:
  Snapshot times_;
  // Shorter or equal times change nothing.
  std::array<std::atomic<int64_t>, kHandlers> second_longest_ns_ = {};
  mutable Mutex mutex_;
  LongestTimes longest_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<std::atomic<int64_t>, kMaxHolds> holds_ = {};  // 0: free.
};

// Adds the time from `since_ns` to its destruction.
class HandlerTimer {
 public:
  HandlerTimer(HandlerTimes& times, const Clock& clock, Handler handler, int64_t since_ns)
      : times_(times),
        clock_(clock),
        handler_(handler),
        since_ns_(since_ns),
        cpu_since_ns_(CpuNs()),
        hold_(times.Take(since_ns)) {}
  ~HandlerTimer() {
    HandlerTimes::Release(hold_);
    times_.Add(handler_, clock_.NowNs() - since_ns_, CpuNs() - cpu_since_ns_);
  }
  HandlerTimer(const HandlerTimer&) = delete;
  HandlerTimer& operator=(const HandlerTimer&) = delete;

 private:
  // The processor time of the calling thread.
  static int64_t CpuNs();

  HandlerTimes& times_;
  const Clock& clock_;
  const Handler handler_;
  const int64_t since_ns_;
  const int64_t cpu_since_ns_;
  const HandlerTimes::Hold hold_;
};

// Used by the reactor of a call to time each of its reactions. Borrows both.
struct HandlerTiming {
  HandlerTimes& times;
  const Clock& clock;
  Handler handler;

  HandlerTimer Begin() const { return {times, clock, handler, clock.NowNs()}; }
};

}  // namespace gemmd
