// SPDX-License-Identifier: Apache-2.0
//
// One request on its way through the lanes of a GPU. It asks for as much as may be under way, and
// is looked at again until all is done; nothing waits.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "kernels/matrix/abort.h"
#include "kernels/problem.h"
#include "server/crossing/protocol.h"
#include "server/crossing/shared_memory.h"
#include "server/worker/gpu_memory.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

// What all requests share. Borrows all of it.
struct RunContext {
  GpuRuntime& runtime;
  Lanes& lanes;
  BlockTable& blocks;
  DeviceArena& arena;
  const Staging& staging;
  std::byte* const seen_staging;  // The whole of it, where kernels find it.
  const Target target;
  const int64_t memory_limit_bytes;
  const int64_t tensor_limit_bytes;

  BlockTurns turns = {};  // Of the requests, which have them from the start to LeaveTurns.
  // The request whose kernels are being launched, so that those of two do not mix; 0: none.
  uint64_t computing = 0;
  // In this look at the requests: whether an earlier one waits for memory, which the later ones
  // then do not take before it, and whether there is any earlier one.
  bool is_memory_short = false;
  bool is_first = true;

  // Where kernels find a byte of the staging area.
  std::byte* Seen(const std::byte* staged) const;
  // What jobs and blocks take together may grow by so much.
  int64_t free_bytes() const;
};

// No lane is given more than this ahead, so that what is aborted ends soon.
inline constexpr int64_t kMaxAheadNs = 10'000'000;

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
  bool HasTurn() const { return context_.turns.HasTurn(id_, uses_); }
  void LeaveTurns() { context_.turns.Leave(id_, uses_); }
  // Takes a range of the arena, which the request has until it goes. False where there will be
  // memory later.
  absl::StatusOr<bool> TakeRange(int64_t bytes);
  std::byte* range() const { return range_.memory; }
  bool HasRoom(Lane lane) const { return context_.lanes.outstanding_ns(lane) <= kMaxAheadNs; }

 private:
  bool IsAborted() const;

  RunContext& context_;
  const uint64_t id_;
  const uint32_t slot_;
  const std::vector<BlockUse> uses_;
  std::vector<LanePoint> points_;
  DeviceArena::Range range_;
  absl::Status outcome_;
  bool is_started_ = false;
  bool is_issued_ = false;
};

// At 12 GB/s, as over PCIe 3.
constexpr int64_t CopyNs(int64_t bytes) { return bytes / 12; }

// Panels: the parts of a launch that would keep a GPU busy for too long, because nothing stops a
// launch between two tiles of D. Every element of D is a sum of its own, so panels do not change a
// bit. A sum is not divided: the kernels begin it with zero. They look for an abort while they
// make a long one (kernels/cuda/device/mainloop/abort.cuh).
//
// How a launch is divided: over the batch first, because a panel packs again what it shares with
// others; a single matrix over columns, or over rows where D has more of those.
struct GpuPanels {
  enum class Axis : uint8_t { kBatch, kRows, kColumns };
  Axis axis = Axis::kBatch;
  int64_t extent = 0;  // The problem is so long along the axis.
  int64_t step = 0;    // Every panel but the last is so long.

  int64_t count() const { return extent == 0 ? 0 : (extent - 1) / step + 1; }
};

// Divides a problem that should take `predicted_ns` into panels of some 10 ms. There may be fewer
// where lines would not begin where LaunchOnStream wants them.
GpuPanels DivideLaunch(const Problem& problem, int64_t predicted_ns);

// The problem of one panel, and its launch: pointers into the matrices of `args`. The panel's
// kernel, workspace and flags are those of the whole.
Problem ProblemOfGpuPanel(const Problem& problem, const GpuPanels& panels, int64_t index);
GemmArgs PanelArgs(const GemmArgs& args, const GpuPanels& panels, int64_t index,
                   const Problem& panel);

// A request about a block: to take it, to give it back, to copy into it or out of it.
class MemoryRun final : public Run {
 public:
  MemoryRun(RunContext& context, const MemoryRequest& request);

 protected:
  absl::Status Issue() override;
  absl::Status FillTimes(Result& result) override;

 private:
  absl::Status Allocate();
  absl::Status CheckRoom();
  absl::Status Free();
  absl::Status Copy();

  const MemoryRequest request_;
  LanePoint begin_;
  LanePoint end_;
};

// A request to compress some lines of a block into another one.
class CompressRun final : public Run {
 public:
  // The request was checked (CheckCompressRequest).
  CompressRun(RunContext& context, const CompressRequest& request);

 protected:
  absl::Status Issue() override;
  absl::Status FillTimes(Result& result) override;

 private:
  const CompressRequest request_;
  LanePoint begin_;
  LanePoint compressed_;
  LanePoint end_;
};

// A product on its way through a GPU: its operands in, its kernels, its result out. What is small
// goes through the lane of kernels alone, where nothing has to follow another lane.
class JobRun final : public Run {
 public:
  // The request was checked (CheckJob).
  JobRun(RunContext& context, const JobRequest& request);

 protected:
  absl::Status Issue() override;
  absl::Status FillTimes(Result& result) override;

 private:
  enum class Stage : uint8_t { kMemory, kIn, kCompute, kOut, kIssued };

  JobRun(RunContext& context, const JobRequest& request, std::vector<PlacedPart> parts);

  // Each asks for what there is room for, and goes on to the next stage once that is all.
  absl::Status TakeMemory();
  absl::Status FindForms();
  absl::Status IssueIn();
  absl::Status IssueCompute();
  absl::Status BeginCompute();
  absl::Status EndCompute();
  absl::Status MarkD(std::byte* at);
  absl::Status IssueOut();
  absl::Status IssueStage();
  // The copies of the matrices that lie in parts go where the list of those was staged.
  void StagePartCopies() const;
  absl::Status CopyParts(int64_t first, int64_t count);

  const Kernel& kernel() const;
  bool MayCompute() const;
  absl::Span<std::byte> Staged(int64_t offset, int64_t bytes) const;
  absl::StatusOr<int64_t> Between(const LanePoint& start, const LanePoint& end);

  const JobRequest request_;
  const std::vector<PlacedPart> parts_;
  JobMemory memory_;
  Lane in_lane_ = Lane::kIn;
  Lane out_lane_ = Lane::kOut;
  Stage stage_ = Stage::kMemory;
  int64_t copied_ = 0;  // Bytes of this stage.
  GpuPanels panels_;
  int64_t panel_ = 0;
  // The forms of A and B, unless the launch is divided, and their bytes together.
  OperandForm a_form_;
  OperandForm b_form_;
  int64_t form_bytes_ = 0;
  // Zero where the stage has nothing to do.
  LanePoint in_begin_;
  LanePoint in_end_;
  LanePoint compute_begin_;
  LanePoint compute_end_;
  LanePoint out_begin_;
  LanePoint out_end_;
};

}  // namespace gemmd
