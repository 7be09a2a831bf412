// SPDX-License-Identifier: Apache-2.0
//
// Allocates ranges of a GPU's staging area, for running jobs and for results that wait to be sent.
// A third of the area is reserved for results, which stay there until their callers have read them.
// If that third is full, D gets a range in the part for jobs and is then copied to the heap. So
// jobs never wait for a slow caller.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/shared_memory.h"
#include "server/system/files.h"
#include "server/system/mutex.h"

namespace gemmd {

// Wakes a thread that sleeps in poll.
class Waker {
 public:
  Waker() : file_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  bool is_open() const { return file_.is_open(); }
  // Readable after a wake-up.
  int descriptor() const { return file_.get(); }

  // Threads: any.
  void Wake() const {
    if (is_woken_.exchange(true)) return;
    const uint64_t one = 1;
    // Fails only if the counter is full, and then the thread is awake.
    [[maybe_unused]] const ssize_t written = write(file_.get(), &one, sizeof(one));
  }
  // Whether it was woken since the last call.
  bool TakeWake() const {
    if (!is_woken_.load(std::memory_order_relaxed)) return false;
    uint64_t count = 0;
    // The waking thread has still to write: the descriptor stays readable until the next call.
    if (read(file_.get(), &count, sizeof(count)) < 0) return true;
    // Later wake-ups write again.
    return is_woken_.exchange(false);
  }

 private:
  FileDescriptor file_;
  mutable std::atomic<bool> is_woken_ = false;
};

class StagingArea;

// A range of the area, freed by the destructor. Threads: one at a time; any thread may destroy it.
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

  int64_t offset() const { return offset_; }  // Offset in the area; 0 if empty.
  absl::Span<std::byte> bytes() const;
  // Whether the range is in the part for results.
  bool is_for_results() const;

 private:
  friend StagingArea;
  StagingRange(std::shared_ptr<StagingArea> area, int64_t offset, int64_t bytes)
      : area_(std::move(area)), offset_(offset), bytes_(bytes) {}

  std::shared_ptr<StagingArea> area_;
  int64_t offset_ = 0;
  int64_t bytes_ = 0;
};

// Kept alive by its ranges.
class StagingArea : public std::enable_shared_from_this<StagingArea> {
 public:
  // If `poisons_freed`, freed ranges are filled with kPoison. Errors: ResourceExhausted.
  static absl::StatusOr<std::shared_ptr<StagingArea>> Create(int64_t bytes,
                                                             std::shared_ptr<const Waker> waker,
                                                             bool poisons_freed = false);

  // The max total of one job's inputs and D.
  static int64_t BytesForJobs(int64_t bytes);

  // Takes ranges of these sizes for a job's inputs and D, aligned to kJobAlignment. D's range is in
  // the part for results if `out_may_stay` and there is space. Returns false if there is no space
  // for both; the waker is then woken once a range is freed. Threads: any.
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

// Marks that a worker must overwrite before it reports a result. They are at the beginning of every
// page that it writes in the staging area, which detects a worker that reports OK without writing,
// or skips a page, so that old data is never sent to another caller. Omissions within a page are
// not detected.
class ResultStamps {
 public:
  static constexpr size_t kBytes = kMarkBytes;
  static constexpr size_t kMinBytes = kMinMarkBytes;
  static constexpr size_t kPageBytes = 4096;

  // Random, so that no result has such bytes.
  ResultStamps();

  // Marks the pages, and clears the last one if it is too short for a mark.
  void Put(absl::Span<std::byte> d) const;

  // Whether a mark is left; only `first_bytes` of the first one count.
  bool AreLeft(absl::Span<const std::byte> d, size_t first_bytes = kBytes) const;

 private:
  std::array<std::byte, kBytes> stamp_;
};

}  // namespace gemmd
