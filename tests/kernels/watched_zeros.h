// SPDX-License-Identifier: Apache-2.0
//
// How far work has come and how often it looks at its abort flag, counted instead of measured by a
// clock: a signal handler sees each page of a matrix when it is first read or written, and each
// read of the flag.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/matrix/abort.h"

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

// An abort flag that counts looks at it. One at a time in a process; only the thread that made it
// may look at the flag, or touch the zeros that a PageWatch watches.
class WatchedFlag {
 public:
  WatchedFlag();
  ~WatchedFlag();
  WatchedFlag(const WatchedFlag&) = delete;
  WatchedFlag& operator=(const WatchedFlag&) = delete;

  AbortFlag flag() const { return flag_; }
  // Counts looks from now on until there are kMaxLooks.
  void CountLooks();
  // Ends the counting.
  int64_t TakeLooks();

  static constexpr int64_t kMaxLooks = 100'000;

 private:
  friend class PageWatch;

  const Zeros page_;
  std::atomic<bool>* const flag_;
};

// Watches the pages of some zeros until it ends; one at a time in a process.
class PageWatch {
 public:
  // Sets the flag and starts to count looks at it when so many pages have been touched.
  PageWatch(const Zeros& zeros, int64_t pages_until_abort, WatchedFlag& flag);
  ~PageWatch();
  PageWatch(const PageWatch&) = delete;
  PageWatch& operator=(const PageWatch&) = delete;

  int64_t pages() const { return pages_; }  // Of all the zeros.
  int64_t pages_touched() const { return touched_; }

  // Called by the signal handler: whether the address is one of these zeros.
  bool Touch(const std::byte* at);

 private:
  std::byte* const begin_;
  const int64_t pages_;
  const int64_t pages_until_abort_;
  WatchedFlag& flag_;
  std::atomic<int64_t> touched_ = 0;
};

}  // namespace gemmd
