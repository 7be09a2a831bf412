// SPDX-License-Identifier: Apache-2.0
#include "server/device/job.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace gemmd {

Source SourcePieces::Add(std::vector<Piece> pieces) {
  assert(used_ < kMost);
  std::vector<Piece>& list = lists_[used_++];
  list = std::move(pieces);
  list.erase(std::remove_if(list.begin(), list.end(), [](Piece piece) { return piece.empty(); }),
             list.end());
  Source source;
  source.pieces = list;
  for (const Piece& piece : list) source.bytes += static_cast<int64_t>(piece.size());
  return source;
}

}  // namespace gemmd
