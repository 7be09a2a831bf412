// SPDX-License-Identifier: Apache-2.0
#include "client/load/recorder.h"

#include <functional>
#include <thread>
#include <utility>

namespace gemmd {

Recorder::Shard& Recorder::ShardOfThisThread() {
  // Ids are addresses: their low bits are all the same.
  const size_t hash = std::hash<std::thread::id>()(std::this_thread::get_id());
  return shards_[(hash ^ hash >> 13 ^ hash >> 21) % shards_.size()];
}

void Recorder::Add(const CallSample& sample) {
  const bool is_ok = sample.code == absl::StatusCode::kOk;
  if (is_ok && sample.ended_ns >= window_from_ns_ && sample.ended_ns < window_to_ns_.load()) {
    ended_in_window_.fetch_add(1, std::memory_order_relaxed);
  }
  Shard& shard = ShardOfThisThread();
  absl::MutexLock lock(&shard.mutex);
  IntervalTally& interval = sample.ended_ns < shard.interval_to_ns ? shard.interval : shard.later;
  if (is_ok) interval.latency.Record(sample.ended_ns - sample.intended_ns);
  ++interval.calls_by_code[CodeIndex(sample.code)];
  if (sample.intended_ns >= window_from_ns_) shard.total.Add(sample);
}

Tally Recorder::Total() const {
  Tally total;
  for (const Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    total.Merge(shard.total);
  }
  return total;
}

void IntervalTally::Merge(const IntervalTally& other) {
  latency.Merge(other.latency);
  for (size_t i = 0; i < calls_by_code.size(); ++i) calls_by_code[i] += other.calls_by_code[i];
}

void Recorder::SetIntervalEnd(int64_t to_ns) {
  for (Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    shard.interval_to_ns = to_ns;
  }
}

IntervalTally Recorder::TakeInterval(int64_t next_to_ns) {
  IntervalTally all;
  for (Shard& shard : shards_) {
    IntervalTally part;
    {
      absl::MutexLock lock(&shard.mutex);
      part = std::exchange(shard.interval, std::exchange(shard.later, {}));
      shard.interval_to_ns = next_to_ns;
    }
    all.Merge(part);
  }
  return all;
}

IntervalTally Recorder::TakeRest() {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  IntervalTally all = TakeInterval(kNever);
  all.Merge(TakeInterval(kNever));  // What ended after the interval's end.
  return all;
}

}  // namespace gemmd
