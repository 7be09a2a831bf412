// SPDX-License-Identifier: Apache-2.0
//
// One request on its way through the lanes of a GPU. It asks for as much as may be under way, and
// is looked at again until all is done; nothing waits.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/abort.h"
#include "server/crossing/protocol.h"
#include "server/crossing/staging.h"
#include "server/worker/block_table.h"
#include "server/worker/device_arena.h"
#include "server/worker/gpu_runtime.h"
#include "server/worker/lanes.h"

namespace gemmd {

// What all requests share. Borrows all of it.
struct RunContext {
  GpuRuntime& runtime;
  Lanes& lanes;
  BlockTable& blocks;
  DeviceArena& arena;
  const Staging& staging;
  const Target target;
  const int64_t memory_limit_bytes;
  const int64_t tensor_limit_bytes;

  // The request whose kernels are being launched, so that those of two do not mix; 0: none.
  uint64_t computing = 0;
  // In this look at the requests: whether an earlier one waits for memory, which the later ones
  // then do not take before it, and whether there is any earlier one.
  bool is_memory_short = false;
  bool is_first = true;

  // What jobs and blocks take together may grow by so much.
  int64_t free_bytes() const;
};

// No lane is given more than this ahead, so that what is aborted ends soon.
inline constexpr int64_t kMostAheadNs = 10'000'000;

class Run {
 public:
  Run(RunContext& context, uint64_t id, uint32_t slot, std::vector<BlockUse> uses);
  virtual ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Asks for what may be under way now.
  // Errors: the request fails with them. Cancelled once nobody wants it any more.
  absl::Status Advance();
  // Nothing more is asked for, and the answer is this status.
  void End(const absl::Status& status);
  // Makes IsDone wait for all that was asked for; before End.
  // Errors: those of the runtime; nobody then knows what is under way.
  absl::Status AwaitAll();
  // Whether all is done that was asked for, and no more will be.
  bool IsDone() const;
  // Whether anything was asked for.
  bool is_started() const { return is_started_; }
  uint64_t id() const { return id_; }

  // The answer, once it is done.
  Result MakeResult();

 protected:
  // Asks for more, with Start before the first of it and SetIssued after the last.
  virtual absl::Status Issue() = 0;
  // Fills in the times of a request that went well.
  virtual absl::Status FillTimes(Result& result) = 0;

  RunContext& context() const { return context_; }
  const std::vector<BlockUse>& uses() const { return uses_; }
  // What kernels look at to see that nobody wants the request any more.
  AbortWord abort_word() const;
  // Tells the front that the GPU is given something.
  void Start();
  void SetIssued() { is_issued_ = true; }
  // Marks a point that is kept until this goes.
  absl::StatusOr<LanePoint> Mark(Lane lane, int64_t cost_ns);
  bool HasTurn() const { return context_.blocks.HasTurn(id_, uses_); }
  void LeaveTurns() { context_.blocks.Leave(id_, uses_); }
  bool HasRoom(Lane lane) const { return context_.lanes.outstanding_ns(lane) <= kMostAheadNs; }

 private:
  bool IsAborted() const;

  RunContext& context_;
  const uint64_t id_;
  const uint32_t slot_;
  const std::vector<BlockUse> uses_;
  std::vector<LanePoint> points_;
  absl::Status outcome_;
  bool is_started_ = false;
  bool is_issued_ = false;
};

// At 12 GB/s, as over PCIe 3.
constexpr int64_t CopyNs(int64_t bytes) { return bytes / 12; }

}  // namespace gemmd
