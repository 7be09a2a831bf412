// SPDX-License-Identifier: Apache-2.0
#include "server/device/job.h"

#include <cassert>
#include <utility>

namespace gemmd {

Source SourcePieces::Add(PieceList pieces, PieceKeeper* keeper) {
  assert(used_ < kMost);
  PieceList& list = lists_[used_++];
  list = std::move(pieces);
  Source source = {.pieces = list, .keeper = keeper};
  for (const Piece& piece : list) source.bytes += static_cast<int64_t>(piece.size());
  return source;
}

}  // namespace gemmd
