// SPDX-License-Identifier: Apache-2.0
//
// The staging area of a GPU in ranges: what jobs under way need, and results that wait to be sent.
//
// A third of the area is for results alone, which stay there until their callers have read them.
// Where that is full, D gets a range among those of jobs and is copied to memory of the heap once
// it is there. So jobs never wait for a caller that reads slowly.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/crossing/free_ranges.h"
#include "server/crossing/staging.h"
#include "server/device/waker.h"
#include "server/system/mutex.h"

namespace gemmd {

class StagingArea;

// A range of the area, free again once this goes. Threads: one at a time, but any may be the last.
class StagingRange {
 public:
  StagingRange() = default;
  StagingRange(StagingRange&& other) noexcept { *this = std::move(other); }
  StagingRange& operator=(StagingRange&& other) noexcept {
    std::swap(area_, other.area_);
    std::swap(offset_, other.offset_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~StagingRange();

  int64_t offset() const { return offset_; }  // In the area; 0 where there are no bytes.
  absl::Span<std::byte> bytes() const;
  // Whether results may stay in it.
  bool is_for_results() const;

 private:
  friend StagingArea;
  StagingRange(std::shared_ptr<StagingArea> area, int64_t offset, int64_t bytes)
      : area_(std::move(area)), offset_(offset), bytes_(bytes) {}

  std::shared_ptr<StagingArea> area_;
  int64_t offset_ = 0;
  int64_t bytes_ = 0;
};

// Lives as long as any of its ranges.
class StagingArea : public std::enable_shared_from_this<StagingArea> {
 public:
  // Free ranges are full of kPoison once they were used, where that is wanted.
  // Errors: ResourceExhausted.
  static absl::StatusOr<std::shared_ptr<StagingArea>> Create(int64_t bytes,
                                                             std::shared_ptr<const Waker> waker,
                                                             bool poisons_freed = false);

  // What one job may need together: inputs and D.
  static int64_t BytesForJobs(int64_t bytes);

  // Takes ranges for what a job reads and for D, each of so many bytes and aligned to
  // kJobAlignment. D gets one where results stay, if it may and there is room. False where there is
  // no room for both; the waker is then woken as soon as a range is free again. Threads: any.
  bool Take(int64_t in_bytes, int64_t out_bytes, bool out_may_stay, StagingRange& in,
            StagingRange& out) ABSL_LOCKS_EXCLUDED(mutex_);

  int descriptor() const { return staging_.descriptor(); }
  StagingControl& control() const { return staging_.control(); }
  int64_t bytes() const { return static_cast<int64_t>(staging_.matrices().size()); }
  int64_t taken_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend StagingRange;
  StagingArea(Staging staging, std::shared_ptr<const Waker> waker, bool poisons_freed);

  void GiveBack(int64_t offset, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const Staging staging_;
  const std::shared_ptr<const Waker> waker_;
  const bool poisons_freed_;
  const int64_t results_begin_;
  mutable Mutex mutex_;
  FreeRanges for_jobs_ ABSL_GUARDED_BY(mutex_);
  FreeRanges for_results_ ABSL_GUARDED_BY(mutex_);
  bool is_wanted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gemmd
