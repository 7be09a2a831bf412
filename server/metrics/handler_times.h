// SPDX-License-Identifier: Apache-2.0
//
// How long calls hold a thread of gRPC's: while one does, the calls that the thread polls for wait.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "server/scheduling/latency_histogram.h"
#include "server/system/clock.h"

namespace gemmd {

// What holds a thread: the code that gRPC calls for a method.
enum class Handler : uint8_t {
  kMultiply,
  kMultiplyStream,  // For each message of a stream.
  kListKernels,
  kListDevices,
  kExplain,
  kGetServerInfo,
  kGetStatistics,
  kListInstructions,
  kDescribeFragment,
  kOpenSession,
  kPut,  // For each message of a stream.
  kGet,  // Up to the first chunk.
  kList,
  kDescribe,
  kDelete,
  kKeepAlive,
  kCompress,
  kModelInfer,
  kModelStreamInfer,  // For each message of a stream.
  kKserve,            // All other methods of KServe's protocol.
  kRestartDevice,
  kListIncidents,
  kGetIncidentProduct
};
inline constexpr size_t kHandlers = 23;
std::string_view NameOf(Handler handler);  // The method's: "ListKernels".

class HandlerTimes {
 public:
  using Snapshot = std::array<LatencyHistogram::Snapshot, kHandlers>;  // Indexed by Handler.

  // Threads: any.
  void Add(Handler handler, int64_t held_ns) { times_[static_cast<size_t>(handler)].Add(held_ns); }
  Snapshot Read() const;

  // A handler that holds a thread of gRPC's now, since `since_ns`. Where more than kMostHolds do at
  // once the others are not noted, and there is no hold.
  // Threads: any. Let go of by the one that took it.
  using Hold = std::atomic<int64_t>*;
  Hold Take(int64_t since_ns);
  static void LetGo(Hold hold);
  static constexpr size_t kMostHolds = 256;

  // Since when the one that holds its thread for the longest does; nothing where none does.
  std::optional<int64_t> oldest_hold_ns() const;

 private:
  std::array<LatencyHistogram, kHandlers> times_;
  std::array<std::atomic<int64_t>, kMostHolds> holds_ = {};  // 0: free.
};

// Adds the time from `since_ns` to its own end.
class HandlerTimer {
 public:
  HandlerTimer(HandlerTimes& times, const Clock& clock, Handler handler, int64_t since_ns)
      : times_(times),
        clock_(clock),
        handler_(handler),
        since_ns_(since_ns),
        hold_(times.Take(since_ns)) {}
  ~HandlerTimer() {
    HandlerTimes::LetGo(hold_);
    times_.Add(handler_, clock_.NowNs() - since_ns_);
  }
  HandlerTimer(const HandlerTimer&) = delete;
  HandlerTimer& operator=(const HandlerTimer&) = delete;

 private:
  HandlerTimes& times_;
  const Clock& clock_;
  const Handler handler_;
  const int64_t since_ns_;
  const HandlerTimes::Hold hold_;
};

}  // namespace gemmd
