// SPDX-License-Identifier: Apache-2.0
//
// Takes the samples of calls that end on many threads, and leaves out those of the warm-up.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/load/histogram.h"
#include "client/load/tally.h"

namespace gemmd {

// The calls that ended within some time, warm-up or not: for the live view and plots over time.
struct IntervalTally {
  Histogram latency;  // Calls that ended OK.
  CallsByCode calls_by_code = {};

  int64_t ok() const { return calls_by_code[0]; }
  int64_t failed() const { return FailedOf(calls_by_code); }
  void Merge(const IntervalTally& other);
};

class Recorder {
 public:
  // Calls that were due before `from_ns` are warm-up; only those that end within the window count
  // for the rate.
  Recorder(int64_t from_ns, int64_t to_ns) : window_from_ns_(from_ns), window_to_ns_(to_ns) {}

  // Any thread.
  void Add(const CallSample& sample);

  // Ends the window sooner.
  void EndWindow(int64_t to_ns) { window_to_ns_.store(to_ns); }

  // All samples so far, of all threads, without the warm-up's.
  Tally Total() const;

  // Calls that ended OK within the window, whenever they were due: what a rate is made of.
  int64_t EndedInWindow() const { return ended_in_window_.load(); }

  // Until when the interval goes: calls that end later are of the next one, however late somebody
  // comes to take this one.
  void SetIntervalEnd(int64_t to_ns);

  // The interval's calls; the next one goes until then.
  IntervalTally TakeInterval(int64_t next_to_ns);

  // All calls that are left.
  IntervalTally TakeRest();

 private:
  // Threads of gRPC seldom meet in one of these.
  struct alignas(64) Shard {
    mutable absl::Mutex mutex;
    Tally total ABSL_GUARDED_BY(mutex);
    int64_t interval_to_ns ABSL_GUARDED_BY(mutex) = std::numeric_limits<int64_t>::max();
    IntervalTally interval ABSL_GUARDED_BY(mutex);
    IntervalTally later ABSL_GUARDED_BY(mutex);
  };
  Shard& ShardOfThisThread();

  int64_t window_from_ns_;
  std::atomic<int64_t> window_to_ns_;
  std::atomic<int64_t> ended_in_window_ = 0;
  std::array<Shard, 8> shards_;
};

}  // namespace gemmd
