// SPDX-License-Identifier: Apache-2.0
//
// Host memory for matrices and results: held until released, then reused or poisoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/crossing/shared_memory.h"

namespace gemmd {

// Owner of a result's bytes, on the heap or in an area shared by several results. Movable; empty
// after a move. Threads: one at a time; any thread may release it.
class HeldBytes {
 public:
  using Release = absl::AnyInvocable<void() &&>;

  HeldBytes() = default;
  // `release` is called once, by the thread that releases the bytes.
  HeldBytes(absl::Span<std::byte> bytes, Release release)
      : bytes_(bytes), release_(std::move(release)) {}
  HeldBytes(HeldBytes&& other) noexcept { *this = std::move(other); }
  HeldBytes& operator=(HeldBytes&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    other.Free();
    return *this;
  }
  ~HeldBytes() { Free(); }

  // Zeroed heap memory; nullopt if there is no memory.
  static std::optional<HeldBytes> Zeros(int64_t bytes);

  absl::Span<std::byte> bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

 private:
  void Free() {
    bytes_ = {};
    if (release_) std::exchange(release_, nullptr)();
  }

  absl::Span<std::byte> bytes_;
  Release release_;
};

// Reused memory for large matrices. The system allocates and clears new memory page by page on
// first use: on a virtual machine that takes 50 ms for 64 MiB, ten times as long as writing them.
// Taken memory may outlive this object. Threads: any.
class WarmMemory {
 public:
  // Shorter memory comes from malloc, which reuses it itself, unless workers need access.
  static constexpr int64_t kMinBytes = int64_t{1} << 20;
  // The bytes that a device keeps for the next product, and for how long without one.
  static constexpr int64_t kKeptBytes = int64_t{128} << 20;
  static constexpr absl::Duration kKeptFor = absl::Seconds(1);

  // Keeps at most `max_kept_bytes` unused bytes, filled with kPoison if `poisons_freed`. With
  // `shared`, memory of at least SharedMemory::kMinBytes is taken there while there is space.
  explicit WarmMemory(int64_t max_kept_bytes, bool poisons_freed = false,
                      SharedMemory* shared = nullptr);

  // Uninitialized bytes; nullopt if there is no memory. Sets `is_new` to whether the system has
  // just given them, so that they are zeros that no process has touched.
  std::optional<HeldBytes> Take(int64_t bytes, bool* is_new = nullptr);

  // Frees all unused memory, and memory returned later, until more is taken.
  void Cool();
  int64_t kept_bytes() const;

 private:
  class Kept;
  const int64_t min_bytes_;
  std::shared_ptr<Kept> kept_;
};

}  // namespace gemmd
