// SPDX-License-Identifier: Apache-2.0
//
// The blocks of a GPU's memory, and the order of those who use them: requests that name a block and
// write it have turns with all others that do, and a lane follows what other lanes do with it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/crossing/job_layout.h"
#include "server/worker/gpu_runtime.h"
#include "server/worker/lanes.h"

namespace gemmd {

class BlockTable {
 public:
  // Borrows the runtime.
  explicit BlockTable(GpuRuntime& runtime) : runtime_(runtime) {}
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  // Takes memory for a block, which is `is_scratch` where it belongs to one product.
  // Errors: InvalidArgument where the number is in use; those of the runtime.
  absl::StatusOr<std::byte*> Add(uint64_t block, int64_t bytes, bool is_scratch);
  // Gives it back. Nothing uses it any longer.
  void Remove(uint64_t block);

  // The memory of a range of a block.
  // Errors: FailedPrecondition where there is no such block, InvalidArgument where the range is not
  // within it.
  absl::StatusOr<std::byte*> Find(uint64_t block, int64_t offset, int64_t bytes) const;

  // A request has turns with all blocks that it uses, from Enter to Leave. Those that are not there
  // are left out. One request uses a block once for writing or once for reading.
  void Enter(uint64_t request, const std::vector<BlockUse>& uses);
  bool HasTurn(uint64_t request, const std::vector<BlockUse>& uses) const;
  void Leave(uint64_t request, const std::vector<BlockUse>& uses);

  // Has the lane wait for what other lanes do with the blocks.
  absl::Status Follow(Lanes& lanes, Lane lane, const std::vector<BlockUse>& uses) const;
  // The blocks are in use until the point.
  void SetUsedUntil(const LanePoint& point, const std::vector<BlockUse>& uses);
  // Whether no lane uses the block any longer.
  bool IsUnused(const Lanes& lanes, uint64_t block) const;

  int64_t tensor_bytes() const { return tensor_bytes_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  using Points = std::array<uint64_t, kAllLanes.size()>;  // By lane.
  struct Turn {
    uint64_t request = 0;
    bool is_write = false;
  };
  struct Block {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
    bool is_scratch = false;
    std::deque<Turn> turns;
    Points last_reads = {};
    Points last_writes = {};
  };

  int64_t& BytesOf(const Block& block) { return block.is_scratch ? scratch_bytes_ : tensor_bytes_; }

  GpuRuntime& runtime_;
  std::map<uint64_t, Block> blocks_;
  int64_t tensor_bytes_ = 0;
  int64_t scratch_bytes_ = 0;
};

}  // namespace gemmd
