// SPDX-License-Identifier: Apache-2.0
#include "server/crossing/free_ranges.h"

#include <algorithm>
#include <iterator>

namespace gemmd {
namespace {

int64_t Rounded(int64_t bytes) {
  constexpr int64_t kAlignment = FreeRanges::kAlignment;
  return bytes / kAlignment * kAlignment + (bytes % kAlignment == 0 ? 0 : kAlignment);
}

}  // namespace

FreeRanges::FreeRanges(int64_t bytes) : bytes_(bytes / kAlignment * kAlignment) {
  if (bytes_ > 0) free_[0] = bytes_;
}

std::optional<int64_t> FreeRanges::Take(int64_t bytes) {
  if (bytes == 0) return 0;
  if (bytes < 0 || bytes > bytes_) return std::nullopt;
  const int64_t rounded = Rounded(bytes);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [rounded](const auto& range) { return range.second >= rounded; });
  if (found == free_.end()) return std::nullopt;
  const auto [offset, length] = *found;
  free_.erase(found);
  if (length > rounded) free_[offset + rounded] = length - rounded;
  taken_bytes_ += rounded;
  return offset;
}

void FreeRanges::GiveBack(int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  int64_t length = Rounded(bytes);
  taken_bytes_ -= length;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

int64_t FreeRanges::longest_bytes() const {
  int64_t longest = 0;
  for (const auto& [offset, length] : free_) longest = std::max(longest, length);
  return longest;
}

}  // namespace gemmd
