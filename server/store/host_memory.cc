// SPDX-License-Identifier: Apache-2.0
#include "server/store/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/text.h"

namespace gemmd {
namespace {

constexpr size_t kAlignment = 64;

absl::Status NoMemory(int64_t bytes) {
  return absl::ResourceExhaustedError(
      Concat("tensor: got no memory of the host for ", bytes, " bytes, try again later"));
}

}  // namespace

absl::StatusOr<HostMemory> HostMemory::Allocate(int64_t bytes) {
  if (bytes == 0) return HostMemory();
  const auto size = static_cast<size_t>(bytes);
  if (bytes >= kMappedBytes) {
    void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return NoMemory(bytes);
    return HostMemory(static_cast<std::byte*>(mapped), bytes);
  }
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, size) != 0) return NoMemory(bytes);
  std::memset(memory, 0, size);
  return HostMemory(static_cast<std::byte*>(memory), bytes);
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

HostMemory::~HostMemory() {
  if (bytes_ >= kMappedBytes) {
    munmap(data_, static_cast<size_t>(bytes_));
  } else {
    std::free(data_);
  }
}

}  // namespace gemmd
