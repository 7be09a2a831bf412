// SPDX-License-Identifier: Apache-2.0
//
// Which ranges of an area of memory are free. Knows no memory and no lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace gemmd {

class FreeRanges {
 public:
  FreeRanges() = default;
  // All of an area of so many bytes is free.
  explicit FreeRanges(int64_t bytes);

  // Takes the first free range that is long enough, and returns its offset, a multiple of
  // kAlignment. A range of 0 bytes is at 0 and need not be given back.
  std::optional<int64_t> Take(int64_t bytes);
  // Gives back what Take returned for so many bytes.
  void GiveBack(int64_t offset, int64_t bytes);

  int64_t bytes() const { return bytes_; }
  int64_t taken_bytes() const { return taken_bytes_; }
  // The length of the longest free range.
  int64_t longest_bytes() const;

  static constexpr int64_t kAlignment = 256;

 private:
  std::map<int64_t, int64_t> free_;  // The length of each free range, by its offset.
  int64_t bytes_ = 0;
  int64_t taken_bytes_ = 0;
};

}  // namespace gemmd
