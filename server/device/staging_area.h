// SPDX-License-Identifier: Apache-2.0
//
// The staging area of a GPU in ranges: what jobs under way need, and results that wait to be sent.
//
// A third of the area is for results alone, which stay there until their callers have read them.
// Where that is full, D gets a range among those of jobs and is copied to memory of the heap once
// it is there. So jobs never wait for a caller that reads slowly.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/shared_memory.h"
#include "server/device/job.h"
#include "server/system/files.h"
#include "server/system/mutex.h"
#include "server/system/threads.h"

namespace gemmd {

// Wakes a thread that sleeps in poll.
class Waker {
 public:
  Waker() : file_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  bool is_open() const { return file_.is_open(); }
  // Readable once it was woken.
  int descriptor() const { return file_.get(); }

  // Threads: any.
  void Wake() const {
    if (is_woken_.exchange(true)) return;
    const uint64_t one = 1;
    // It fails only where the count is full, and then the thread is awake.
    [[maybe_unused]] const ssize_t written = write(file_.get(), &one, sizeof(one));
  }
  // Whether it was woken since the last time.
  bool TakeWake() const {
    if (!is_woken_.load(std::memory_order_relaxed)) return false;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t size = read(file_.get(), &count, sizeof(count));
    // Whoever wakes it from here on writes again.
    return is_woken_.exchange(false);
  }

 private:
  FileDescriptor file_;
  mutable std::atomic<bool> is_woken_ = false;
};

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

// Marks that a worker must have overwritten once it says that a result is there. They lie at the
// beginning of every page of what it writes in the staging area, so that neither a worker that only
// says OK is believed nor one that left out a page, and what an earlier job left there is never
// sent to another caller. What was left out within a page does not show.
class ResultStamps {
 public:
  static constexpr size_t kBytes = kMarkBytes;
  static constexpr size_t kMinBytes = kMinMarkBytes;
  static constexpr size_t kPageBytes = 4096;

  // Random, so that no result has such bytes.
  ResultStamps();

  // Marks the pages, and clears the last one where it is too short for a mark.
  void Put(absl::Span<std::byte> d) const;

  // Whether a mark is left; of the first one, so many bytes count.
  bool AreLeft(absl::Span<const std::byte> d, size_t first_bytes = kBytes) const;

 private:
  std::array<std::byte, kBytes> stamp_;
};

// Bytes that are copied.
struct CopiedBytes {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
  // Not null: is told that this piece of its source has been copied, unless it is a long one.
  PieceKeeper* keeper = nullptr;
  size_t piece = 0;
};

// Copies on the calling thread.
void CopyAll(const std::vector<CopiedBytes>& copies);

// Threads that copy large matrices, several at once: one alone does not use all of the bandwidth
// that the memory of the host has.
class CopyThreads {
 public:
  using Work = ThreadPool::Work;

  // One for four processors, at most four.
  static int DefaultThreads();

  explicit CopyThreads(int threads) : pool_("gemmd-copy", threads) {}

  // Does the work.
  void Run(Work work) { pool_.Run(std::move(work)); }
  // Copies, until `is_aborted`; then calls `done` from one of the threads. Borrows the flag. In the
  // order of the calls, each with all threads.
  void Copy(std::vector<CopiedBytes> copies, const std::atomic<bool>& is_aborted, Work done);

 private:
  struct Copying;

  ThreadPool pool_;
};

}  // namespace gemmd
