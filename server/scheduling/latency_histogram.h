// SPDX-License-Identifier: Apache-2.0
//
// How many durations fell into which bucket. Many threads add without a lock while others read. A
// reader sees each number at some moment; the count is always the sum of the buckets.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "server/scheduling/saturating.h"

namespace gemmd {

class LatencyHistogram {
 public:
  // The largest duration of each bucket, 1 us to 50 s in steps of 1, 2, 5. One more bucket is for
  // all longer durations.
  static constexpr size_t kBounds = 24;
  static constexpr std::array<int64_t, kBounds> kBoundsNs = [] {
    std::array<int64_t, kBounds> bounds = {};
    int64_t decade_ns = 1'000;
    for (size_t i = 0; i < kBounds; i += 3, decade_ns *= 10) {
      bounds[i] = decade_ns;
      bounds[i + 1] = 2 * decade_ns;
      bounds[i + 2] = 5 * decade_ns;
    }
    return bounds;
  }();

  struct Snapshot {
    std::array<int64_t, kBounds + 1> counts = {};  // Each bucket's own, not cumulative.
    int64_t sum_ns = 0;

    int64_t count() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
  };

  // Threads: any.
  void Add(int64_t duration_ns) {
    const auto bound = std::lower_bound(kBoundsNs.begin(), kBoundsNs.end(), duration_ns);
    counts_[static_cast<size_t>(bound - kBoundsNs.begin())].fetch_add(1, std::memory_order_relaxed);
    AddSaturating(sum_ns_, duration_ns);
  }

  // Threads: any.
  Snapshot Read() const {
    Snapshot snapshot;
    for (size_t i = 0; i < counts_.size(); ++i) {
      snapshot.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    snapshot.sum_ns = sum_ns_.load(std::memory_order_relaxed);
    return snapshot;
  }

 private:
  std::array<std::atomic<int64_t>, kBounds + 1> counts_ = {};
  std::atomic<int64_t> sum_ns_ = 0;
};

}  // namespace gemmd
