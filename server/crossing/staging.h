// SPDX-License-Identifier: Apache-2.0
//
// Memory that the front and its workers share: anonymous files (memfd) that neither can make
// shorter or longer, so that no access to them can fail. The area of a GPU's worker has a page of
// control words, then the matrices.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/system/files.h"

namespace gemmd {

// The most requests that a worker has at once.
inline constexpr size_t kMostInFlight = 32;

// What one side must know of the other while that says nothing, by slots of requests.
struct StagingControl {
  // The worker's: the last request of the slot of which something was given to the GPU.
  std::array<std::atomic<uint64_t>, kMostInFlight> started_ids = {};
  // The front's: the last request of the slot that nobody wants any more. The worker looks at it
  // between steps.
  std::array<std::atomic<uint64_t>, kMostInFlight> aborted_ids = {};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

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

}  // namespace gemmd
