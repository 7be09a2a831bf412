// SPDX-License-Identifier: Apache-2.0
//
// Memory of the host for the bytes of a tensor. It reads as zeros until it is written, and goes
// back to the system at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gemmd {

class HostMemory {
 public:
  // From so many bytes on, memory is mapped for itself: the pages are there only once they are
  // touched.
  static constexpr int64_t kMappedBytes = int64_t{1} << 20;

  // Aligned to 64 bytes at least. Errors: ResourceExhausted.
  static absl::StatusOr<HostMemory> Allocate(int64_t bytes);

  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  ~HostMemory();

  // Gives the pages back to the system; the memory reads as zeros again. False where it is not
  // mapped for itself, and nothing has changed.
  bool Clear() const;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  HostMemory(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace gemmd
