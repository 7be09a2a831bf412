// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a tensor there are: ranges that neither touch nor overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"

namespace gemmd {

struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;

  int64_t end() const { return offset + bytes; }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

class ByteRanges {
 public:
  // Adds the range and gives those parts of it that were not there, in order.
  std::vector<ByteRange> Add(ByteRange range);

  // Whether the range overlaps what is there, or follows or precedes it without a gap.
  bool Touches(ByteRange range) const;

  // What is not there of the first `bytes` bytes, in order.
  std::vector<ByteRange> Missing(int64_t bytes) const;

  // How many bytes are there from the first one on.
  int64_t PrefixBytes() const;

  bool Covers(int64_t bytes) const { return PrefixBytes() >= bytes; }
  size_t count() const { return ends_.size(); }

 private:
  absl::btree_map<int64_t, int64_t> ends_;  // From the offset of each range.
};

}  // namespace gemmd
