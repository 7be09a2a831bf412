// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a result that are there until they are let go, wherever they lie: memory of the heap, or
// a range of an area that several results share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"

namespace gemmd {

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

}  // namespace gemmd
