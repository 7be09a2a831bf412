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
  if (is_ok) shard.interval.latency.Record(sample.ended_ns - sample.intended_ns);
  ++shard.interval.calls_by_code[CodeIndex(sample.code)];
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

IntervalTally Recorder::TakeInterval() {
  IntervalTally all;
  for (Shard& shard : shards_) {
    IntervalTally part;
    {
      absl::MutexLock lock(&shard.mutex);
      part = std::exchange(shard.interval, {});
    }
    all.latency.Merge(part.latency);
    for (size_t i = 0; i < all.calls_by_code.size(); ++i) {
      all.calls_by_code[i] += part.calls_by_code[i];
    }
  }
  return all;
}

}  // namespace gemmd
