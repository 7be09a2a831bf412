// SPDX-License-Identifier: Apache-2.0
//
// Memory that the front and its workers share: anonymous files (memfd) that neither can make
// shorter or longer, so that no access to them can fail.
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

// The most requests that a worker has at once.
inline constexpr size_t kMaxInFlight = 32;

// What one side must know of the other while that says nothing, by slots of requests.
struct StagingControl {
  // The worker's: the last request of the slot of which something was given to the GPU.
  std::array<std::atomic<uint64_t>, kMaxInFlight> started_ids = {};
  // The front's: the last request of the slot that nobody wants any more. The worker looks at it
  // between steps.
  std::array<std::atomic<uint64_t>, kMaxInFlight> aborted_ids = {};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The area of a GPU's worker: a page of control words, then the matrices.
class Staging {
 public:
  // Makes an area for `bytes` of matrices; memory is taken as it is touched.
  // Errors: ResourceExhausted.
  static absl::StatusOr<Staging> Create(int64_t bytes);

  // Maps the area of the descriptor, which the caller keeps.
  // Errors: InvalidArgument where Create did not make it.
  static absl::StatusOr<Staging> Map(int descriptor);

  // The bytes of all areas that this process made, as far as their pages are there: also those that
  // only another process has touched. Threads: any.
  static int64_t ResidentBytesOfAll();

  Staging() = default;
  Staging(Staging&& other) noexcept { *this = std::move(other); }
  Staging& operator=(Staging&& other) noexcept;
  ~Staging();

  int descriptor() const { return file_.get(); }  // Only where Create made it.
  StagingControl& control() const { return *reinterpret_cast<StagingControl*>(mapped_.data()); }
  // Control words and matrices.
  absl::Span<std::byte> whole() const { return mapped_; }
  // Aligned to a page. Empty where there is no area.
  absl::Span<std::byte> matrices() const {
    return mapped_.subspan(std::min(mapped_.size(), kControlBytes));
  }

 private:
  static constexpr size_t kControlBytes = 4096;

  absl::Status MapAll(int descriptor, size_t bytes);

  FileDescriptor file_;
  absl::Span<std::byte> mapped_;
};

// Fills memory of the host that held a matrix as soon as nobody uses it, if --poison-freed-memory
// is on: a read by mistake then finds nobody's bytes, and a test that looks for this byte sees
// it.
//
// As an s8 a negative number, and as a float of any type a tiny one: no result of tests' products.
inline constexpr std::byte kPoison{0xa5};

inline void Poison(absl::Span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), kPoison); }

// Tracks which ranges of an area of memory are free. Touches no memory and takes no lock.
class FreeRanges {
 public:
  FreeRanges() = default;
  // All of an area of so many bytes is free.
  explicit FreeRanges(int64_t bytes);

  // Takes the shortest free range that is long enough, the first of several, and returns its
  // offset, a multiple of kAlignment. A range of 0 bytes is at 0 and need not be given back.
  std::optional<int64_t> Take(int64_t bytes);
  // Gives back what Take returned for so many bytes.
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

// Memory of the daemon that the workers of the host's devices see as well, so that they read
// resident tensors and write results where those lie. Mapped whole by the daemon and by each of the
// workers, at addresses of their own; pages are there once they are touched.
//
// Threads: any.
class SharedMemory {
 public:
  // Shorter matrices are copied for each launch: that takes some microseconds.
  static constexpr int64_t kMinBytes = int64_t{64} << 10;

  // Makes the memory of this process, which lasts as long as it does; no second time. As long as
  // four times the memory of the machine, which leaves room between ranges, or, where addresses are
  // limited, a quarter of those that are left.
  // `has_tensors`: whether all resident tensors lie there. Where GPUs take most of them they do
  // not: the system fills memory of a file by small pages, half as fast as a process's own. Errors:
  // ResourceExhausted.
  static absl::Status OpenForProcess(bool has_tensors);
  // Null where it was not opened.
  static SharedMemory* OfProcess();

  // Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(int64_t bytes);

  // Takes a range of zeros that begins at a page; null where there is no room.
  std::byte* Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the range and its pages back.
  void GiveBack(std::byte* memory, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives back the pages of a range that stays taken; it reads as zeros again.
  bool Clear(std::byte* memory, int64_t bytes) const;

  bool has_tensors() const { return has_tensors_; }

  // Where the address lies in the file; nothing for an address of other memory.
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
