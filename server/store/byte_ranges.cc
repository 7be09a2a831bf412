// SPDX-License-Identifier: Apache-2.0
#include "server/store/byte_ranges.h"

#include <algorithm>
#include <iterator>

namespace gemmd {

std::vector<ByteRange> ByteRanges::Add(ByteRange range) {
  std::vector<ByteRange> added;
  if (range.bytes <= 0) return added;
  // The first range that ends at or after the beginning of this one.
  auto next = ends_.upper_bound(range.offset);
  if (next != ends_.begin() && std::prev(next)->second >= range.offset) --next;
  int64_t begin = range.offset;
  int64_t end = range.end();
  int64_t at = range.offset;
  while (next != ends_.end() && next->first <= range.end()) {
    if (next->first > at) added.push_back({at, next->first - at});
    at = std::max(at, next->second);
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  if (at < range.end()) added.push_back({at, range.end() - at});
  ends_.emplace(begin, end);
  return added;
}

bool ByteRanges::Touches(ByteRange range) const {
  // The last range that begins at or before the end of this one.
  const auto after = ends_.upper_bound(range.end());
  return after != ends_.begin() && std::prev(after)->second >= range.offset;
}

std::vector<ByteRange> ByteRanges::Missing(int64_t bytes) const {
  std::vector<ByteRange> missing;
  int64_t at = 0;
  for (const auto& [offset, end] : ends_) {
    if (offset >= bytes) break;
    if (offset > at) missing.push_back({at, offset - at});
    at = end;
  }
  if (at < bytes) missing.push_back({at, bytes - at});
  return missing;
}

int64_t ByteRanges::PrefixBytes() const {
  const auto first = ends_.begin();
  return first != ends_.end() && first->first == 0 ? first->second : 0;
}

}  // namespace gemmd
