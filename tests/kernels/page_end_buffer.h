// SPDX-License-Identifier: Apache-2.0
//
// Memory whose last byte is the last byte of a page, with a forbidden page after it: a read or
// write beyond the end crashes, even in code of libraries, which no sanitizer watches. The bytes
// before it hold a pattern that can be checked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gemmd {

class PageEndBuffer {
 public:
  PageEndBuffer() = default;
  ~PageEndBuffer();
  PageEndBuffer(const PageEndBuffer&) = delete;
  PageEndBuffer& operator=(const PageEndBuffer&) = delete;

  // Memory of `size` bytes filled with `fill`; replaces what was placed before.
  std::byte* Place(int64_t size, std::byte fill);
  // Whether nobody wrote before the memory that was placed last.
  bool FrontIsIntact() const;

 private:
  void Reserve(int64_t bytes);

  std::byte* start_ = nullptr;
  int64_t capacity_ = 0;  // Whole pages before the forbidden one.
  int64_t size_ = 0;      // Placed last.
};

}  // namespace gemmd
