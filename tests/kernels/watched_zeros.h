// SPDX-License-Identifier: Apache-2.0
//
// How far work has come, counted in pages of its memory instead of measured by a clock: the test's
// process sees each page when it is first read or written, and can set an abort flag at one of
// them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace gemmd {

// Zeros that take no memory until they are written.
class Zeros {
 public:
  explicit Zeros(int64_t bytes);
  ~Zeros();
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;

  std::byte* data() const { return data_; }
  absl::Span<const std::byte> bytes() const { return {data_, bytes_}; }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

// Watches the pages of some zeros until it ends, while only the thread that made it touches them;
// one at a time in a process.
class PageWatch {
 public:
  // Sets the flag when `pages_until_abort` pages have been touched.
  PageWatch(const Zeros& zeros, int64_t pages_until_abort, std::atomic<bool>& abort);
  ~PageWatch();
  PageWatch(const PageWatch&) = delete;
  PageWatch& operator=(const PageWatch&) = delete;

  int64_t pages() const { return pages_; }  // Of all the zeros.
  int64_t pages_touched() const { return touched_.load(); }

 private:
  static void OnFault(int signal, void* info, void* context);

  std::byte* const begin_;
  const int64_t pages_;
  const int64_t pages_until_abort_;
  std::atomic<bool>& abort_;
  std::atomic<int64_t> touched_ = 0;
};

}  // namespace gemmd
