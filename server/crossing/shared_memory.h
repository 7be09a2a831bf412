// SPDX-License-Identifier: Apache-2.0
//
// Memory that the front and its workers share: anonymous files (memfd) that neither can resize, so
// that no access to them can fail.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/system/files.h"
#include "server/system/mutex.h"

namespace gemmd {

// Max requests that a worker has at once.
inline constexpr size_t kMaxInFlight = 32;

// State that the sides share without exchanging records, by slot of the request.
struct StagingControl {
  // Written by the worker: the last request of the slot that was started on the GPU.
  std::array<std::atomic<uint64_t>, kMaxInFlight> started_ids = {};
  // Written by the front: the last request of the slot that was aborted. The worker checks it
  // between steps.
  std::array<std::atomic<uint64_t>, kMaxInFlight> aborted_ids = {};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The area of a GPU's worker: a page of control words, then the matrices.
class Staging {
 public:
  // Makes an area for `bytes` of matrices; memory is allocated on first access. Errors:
  // ResourceExhausted.
  static absl::StatusOr<Staging> Create(int64_t bytes);

  // Maps the area of the descriptor, which the caller keeps.
  // Errors: InvalidArgument if Create did not make it.
  static absl::StatusOr<Staging> Map(int descriptor);

  // Resident bytes of all areas that this process made, including pages that only another process
  // has touched. Threads: any.
  static int64_t ResidentBytesOfAll();

  Staging() = default;
  Staging(Staging&& other) noexcept { *this = std::move(other); }
  Staging& operator=(Staging&& other) noexcept;
  ~Staging();

  int descriptor() const { return file_.get(); }  // Only if Create made it.
  StagingControl& control() const { return *reinterpret_cast<StagingControl*>(mapped_.data()); }
  // Control words and matrices.
  absl::Span<std::byte> whole() const { return mapped_; }
  // Page-aligned. Empty if there is no area.
  absl::Span<std::byte> matrices() const {
    return mapped_.subspan(std::min(mapped_.size(), kControlBytes));
  }

 private:
  static constexpr size_t kControlBytes = 4096;

  absl::Status MapAll(int descriptor, size_t bytes);

  FileDescriptor file_;
  absl::Span<std::byte> mapped_;
};

// With --poison-freed-memory, host memory that held a matrix is filled with this byte as soon as it
// is unused: a stray read then finds no caller's data, and a test that looks for this byte sees the
// read.
//
// Negative as an s8, and tiny as a float of any type: not a result of the tests' products.
inline constexpr std::byte kPoison{0xa5};

inline void Poison(absl::Span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), kPoison); }

// Tracks which ranges of an area of memory are free. Touches no memory and takes no lock.
class FreeRanges {
 public:
  FreeRanges() = default;
  // Makes an area of `bytes` bytes, all free.
  explicit FreeRanges(int64_t bytes);

  // Takes the shortest free range that is long enough, or the first of several such ranges, and
  // returns its offset, a multiple of kAlignment. A range of 0 bytes is at 0 and need not be
  // returned.
  std::optional<int64_t> Take(int64_t bytes);
  // Returns a range of `bytes` bytes from Take.
  void GiveBack(int64_t offset, int64_t bytes);

  int64_t bytes() const { return bytes_; }
  int64_t taken_bytes() const { return taken_bytes_; }
  // The length of the longest free range.
  int64_t longest_bytes() const;

  static constexpr int64_t kAlignment = 256;

 private:
  void Add(int64_t offset, int64_t length);
  void Remove(std::map<int64_t, int64_t>::iterator range);

  std::map<int64_t, int64_t> free_;  // The length of each free range, by its offset.
  std::set<std::pair<int64_t, int64_t>> by_length_;  // The same ranges: length, offset.
  int64_t bytes_ = 0;
  int64_t taken_bytes_ = 0;
};

// Memory that the daemon shares with the workers of the host's devices, so that they read resident
// tensors and write results without copies. The daemon and each worker map all of it, each at its
// own address; pages are allocated on first access.
//
// Threads: any.
class SharedMemory {
 public:
  // Shorter matrices are copied for each launch, which takes a few microseconds.
  static constexpr int64_t kMinBytes = int64_t{64} << 10;

  // Makes the memory of this process, which lasts as long as the process; call it once. Its length
  // is four times the memory of the machine, which leaves room between ranges, or, if the address
  // space is limited, a quarter of what is left. `has_tensors`: whether all resident tensors are
  // there. They are not if GPUs hold most of them: the system fills memory of a file in small
  // pages, half as fast as a process's own memory. Errors: ResourceExhausted.
  static absl::Status OpenForProcess(bool has_tensors);
  // Null if it was not opened.
  static SharedMemory* OfProcess();

  // Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(int64_t bytes);

  // Takes a page-aligned range of zeros; null if there is no room.
  std::byte* Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees the range and its pages.
  void GiveBack(std::byte* memory, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Frees the pages of a range that stays taken; it reads as zeros again.
  bool Clear(std::byte* memory, int64_t bytes) const;

  bool has_tensors() const { return has_tensors_; }

  // The offset of the address in the file; nullopt for an address of other memory.
  std::optional<int64_t> OffsetOf(const std::byte* memory) const;

  int descriptor() const { return staging_.descriptor(); }

 private:
  explicit SharedMemory(Staging staging);

  const Staging staging_;
  bool has_tensors_ = true;
  Mutex mutex_;
  FreeRanges ranges_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gemmd
