// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/page_end_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace gemmd {
namespace {

constexpr int64_t kFront = 128;
constexpr std::byte kFrontPattern{0x5a};

}  // namespace

PageEndBuffer::~PageEndBuffer() {
  if (start_ != nullptr) munmap(start_, static_cast<size_t>(capacity_ + getpagesize()));
}

void PageEndBuffer::Reserve(int64_t bytes) {
  if (bytes <= capacity_) return;
  const int64_t page = getpagesize();
  if (start_ != nullptr) munmap(start_, static_cast<size_t>(capacity_ + page));
  capacity_ = (bytes + page - 1) / page * page;
  void* memory = mmap(nullptr, static_cast<size_t>(capacity_ + page), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  start_ = static_cast<std::byte*>(memory);
  if (mprotect(start_ + capacity_, static_cast<size_t>(page), PROT_NONE) != 0) std::abort();
}

std::byte* PageEndBuffer::Place(int64_t size, std::byte fill) {
  Reserve(size + kFront);
  size_ = size;
  std::byte* placed = start_ + capacity_ - size;
  std::fill(placed - kFront, placed, kFrontPattern);
  std::fill(placed, placed + size, fill);
  return placed;
}

bool PageEndBuffer::FrontIsIntact() const {
  const std::byte* placed = start_ + capacity_ - size_;
  return std::all_of(placed - kFront, placed, [](std::byte b) { return b == kFrontPattern; });
}

}  // namespace gemmd
