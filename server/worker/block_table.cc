// SPDX-License-Identifier: Apache-2.0
#include "server/worker/block_table.h"

#include <algorithm>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/crossing/protocol.h"

namespace gemmd {

BlockTable::~BlockTable() {
  for (const auto& [number, block] : blocks_) runtime_.Free(block.memory);
}

absl::StatusOr<std::byte*> BlockTable::Add(uint64_t block, int64_t bytes, bool is_scratch) {
  if (blocks_.contains(block)) {
    return absl::InvalidArgumentError(GotWant("block", Concat(block, " again"), "a new number"));
  }
  Block added;
  added.bytes = bytes;
  added.is_scratch = is_scratch;
  ASSIGN_OR_RETURN(added.memory, runtime_.Allocate(bytes));
  BytesOf(added) += bytes;
  std::byte* const memory = added.memory;
  blocks_[block] = std::move(added);
  return memory;
}

void BlockTable::Remove(uint64_t block) {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;
  runtime_.Free(found->second.memory);
  BytesOf(found->second) -= found->second.bytes;
  blocks_.erase(found);
}

absl::StatusOr<std::byte*> BlockTable::Find(uint64_t block, int64_t offset, int64_t bytes) const {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) {
    return absl::FailedPreconditionError(Concat("tensor lost: the GPU has no block ", block));
  }
  RETURN_IF_ERROR(CheckRange("block", offset, bytes, found->second.bytes));
  return found->second.memory + offset;
}

void BlockTable::Enter(uint64_t request, const std::vector<BlockUse>& uses) {
  for (const BlockUse& use : uses) {
    const auto found = blocks_.find(use.block);
    if (found == blocks_.end()) continue;
    found->second.turns.push_back({.request = request, .is_write = use.is_write});
  }
}

bool BlockTable::HasTurn(uint64_t request, const std::vector<BlockUse>& uses) const {
  return std::all_of(uses.begin(), uses.end(), [&](const BlockUse& use) {
    const auto found = blocks_.find(use.block);
    if (found == blocks_.end()) return true;
    for (const Turn& turn : found->second.turns) {
      if (turn.request == request) return true;
      if (turn.is_write || use.is_write) return false;
    }
    return true;
  });
}

void BlockTable::Leave(uint64_t request, const std::vector<BlockUse>& uses) {
  for (const BlockUse& use : uses) {
    const auto found = blocks_.find(use.block);
    if (found == blocks_.end()) continue;
    std::erase_if(found->second.turns,
                  [request](const Turn& turn) { return turn.request == request; });
  }
}

absl::Status BlockTable::Follow(Lanes& lanes, Lane lane, const std::vector<BlockUse>& uses) const {
  Points latest = {};
  for (const BlockUse& use : uses) {
    const auto found = blocks_.find(use.block);
    if (found == blocks_.end()) continue;
    const Block& block = found->second;
    for (size_t i = 0; i < latest.size(); ++i) {
      latest[i] = std::max(latest[i], block.last_writes[i]);
      if (use.is_write) latest[i] = std::max(latest[i], block.last_reads[i]);
    }
  }
  for (const Lane other : kAllLanes) {
    RETURN_IF_ERROR(lanes.Follow(lane, other, latest[static_cast<size_t>(other)]));
  }
  return absl::OkStatus();
}

void BlockTable::SetUsedUntil(const LanePoint& point, const std::vector<BlockUse>& uses) {
  for (const BlockUse& use : uses) {
    const auto found = blocks_.find(use.block);
    if (found == blocks_.end()) continue;
    Points& points = use.is_write ? found->second.last_writes : found->second.last_reads;
    points[static_cast<size_t>(point.lane)] = point.number;
  }
}

bool BlockTable::IsUnused(const Lanes& lanes, uint64_t block) const {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return true;
  return std::all_of(kAllLanes.begin(), kAllLanes.end(), [&](Lane lane) {
    const auto index = static_cast<size_t>(lane);
    return lanes.IsReached(lane, found->second.last_reads[index]) &&
           lanes.IsReached(lane, found->second.last_writes[index]);
  });
}

}  // namespace gemmd
