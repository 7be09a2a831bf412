// SPDX-License-Identifier: Apache-2.0
#include "server/store/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/text.h"
#include "server/system/spare_addresses.h"

namespace gemmd {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

absl::Status NoMemory(int64_t bytes) {
  return absl::ResourceExhaustedError(
      Concat("tensor: got no memory of the host for ", bytes, " bytes, try again later"));
}

// New memory that begins at a huge page, so that as many of them as fit fill it: the system clears
// and maps memory by the page, and an upload of small ones waits for that four fifths of its time.
// Null where there is none.
std::byte* Map(size_t bytes) {
  const auto page = static_cast<size_t>(getpagesize());
  bytes = (bytes + page - 1) / page * page;
  const size_t slack = bytes < kHugePage ? 0 : kHugePage;
  void* const mapped = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(mapped);
  if (slack == 0) return first;
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(first) % kHugePage) % kHugePage;
  std::byte* const memory = first + before;
  if (before > 0) munmap(first, before);
  if (before < slack) munmap(memory + bytes, slack - before);
  // Where the system has none, small pages do.
  (void)madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

absl::StatusOr<HostMemory> HostMemory::Allocate(int64_t bytes) {
  if (bytes == 0) return HostMemory();
  const auto size = static_cast<size_t>(bytes);
  if (bytes >= kMappedBytes) {
    std::byte* const mapped = Map(size);
    if (mapped == nullptr) return NoMemory(bytes);
    HostMemory memory(mapped, bytes);
    if (!HasSpareAddresses()) return NoMemory(bytes);
    return memory;
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

bool HostMemory::Clear() const {
  return bytes_ >= kMappedBytes && madvise(data_, static_cast<size_t>(bytes_), MADV_DONTNEED) == 0;
}

HostMemory::~HostMemory() {
  if (bytes_ >= kMappedBytes) {
    munmap(data_, static_cast<size_t>(bytes_));
  } else {
    std::free(data_);
  }
}

}  // namespace gemmd
