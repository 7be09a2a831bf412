// SPDX-License-Identifier: Apache-2.0
//
// Memory of the host for matrices and results: held until it is let go, used again, or poisoned.
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

// Bytes of a result that are there until they are let go, wherever they lie: memory of the heap, or
// a range of an area that several results share.
//
// Movable; what was moved from holds nothing. Threads: one at a time, but any may be the last.
class HeldBytes {
 public:
  using Release = absl::AnyInvocable<void() &&>;

  HeldBytes() = default;
  // `release` is called once, when the bytes are let go, by the thread that does so.
  HeldBytes(absl::Span<std::byte> bytes, Release release)
      : bytes_(bytes), release_(std::move(release)) {}
  HeldBytes(HeldBytes&& other) noexcept { *this = std::move(other); }
  HeldBytes& operator=(HeldBytes&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    other.LetGo();
    return *this;
  }
  ~HeldBytes() { LetGo(); }

  // Zeros of the heap. None where there is no memory.
  static std::optional<HeldBytes> Zeros(int64_t bytes);

  absl::Span<std::byte> bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

 private:
  void LetGo() {
    bytes_ = {};
    if (release_) std::exchange(release_, nullptr)();
  }

  absl::Span<std::byte> bytes_;
  Release release_;
};

// Memory for large matrices that is used again. The system gives new memory by the page, and clears
// each at its first use: on a virtual machine that takes 50 ms for 64 MiB, ten times as long as
// writing them.
//
// What was taken may outlive this. Threads: any.
class WarmMemory {
 public:
  // Shorter pieces of memory come from malloc, which keeps them warm itself, unless workers are to
  // see them.
  static constexpr int64_t kMinBytes = int64_t{1} << 20;
  // What a device keeps for the next product, and for how long where there is none.
  static constexpr int64_t kKeptBytes = int64_t{128} << 20;
  static constexpr absl::Duration kKeptFor = absl::Seconds(1);

  // At most so many bytes that nobody uses are kept, full of kPoison where that is wanted. With
  // `shared`, memory is taken there as long as there is room, from SharedMemory::kMinBytes on.
  explicit WarmMemory(int64_t max_kept_bytes, bool poisons_freed = false,
                      SharedMemory* shared = nullptr);

  // Bytes of any value. None where there is no memory.
  std::optional<HeldBytes> Take(int64_t bytes);

  // Gives back all that nobody uses, and what comes back later, until more is taken.
  void Cool();
  int64_t kept_bytes() const;

 private:
  class Kept;
  const int64_t min_bytes_;
  std::shared_ptr<Kept> kept_;
};

}  // namespace gemmd
