// SPDX-License-Identifier: Apache-2.0
//
// One request on its way through the lanes of a GPU. It enqueues as much work as allowed, and is
// polled until all is done; nothing blocks.
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

// Objects shared by all requests. All borrowed.
struct RunContext {
  GpuRuntime& runtime;
  Lanes& lanes;
  BlockTable& blocks;
  DeviceArena& arena;
  const Staging& staging;
  std::byte* const seen_staging;  // The staging area's address for kernels.
  const Target target;
  const int64_t memory_limit_bytes;

  BlockTurns turns = {};  // Turns of the requests, from the start to LeaveTurns.
  // The request whose kernels are being launched, so that kernels of two requests do not
  // interleave; 0: none.
  uint64_t computing = 0;
  // In the current poll of the requests: whether an earlier request waits for memory (later ones
  // must then not take it), and whether there is an earlier one.
  bool is_memory_short = false;
  bool is_first = true;

  // A kernel's address of a byte of the staging area.
  std::byte* Seen(const std::byte* staged) const;
  // The bytes by which jobs and blocks together may grow.
  int64_t free_bytes() const;
};

// Max work enqueued ahead per lane, so that an aborted request ends soon.
inline constexpr int64_t kMaxAheadNs = 10'000'000;

class Run {
 public:
  Run(RunContext& context, uint64_t id, uint32_t slot, BlockUses uses);
  virtual ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Enqueues the work allowed now. Errors: the request fails with them; Cancelled if aborted.
  absl::Status Advance();
  // Stops enqueuing work; the answer is this status.
  void End(const absl::Status& status);
  // Makes IsDone wait for all enqueued work; call before End. Errors: those of the runtime; the
  // state of the work is then unknown.
  absl::Status AwaitAll();
  // Whether all work is done, and no more will be enqueued.
  bool IsDone() const;
  // Whether any work was enqueued.
  bool is_started() const { return is_started_; }
  uint64_t id() const { return id_; }

  // The answer, once it is done.
  Result MakeResult();

 protected:
  // Enqueues more work, with Start before the first and SetIssued after the last.
  virtual absl::Status Issue() = 0;
  // Sets the times of a successful request.
  virtual absl::Status FillTimes(Result& result) = 0;

  RunContext& context() const { return context_; }
  const BlockUses& uses() const { return uses_; }
  // The abort word that kernels check.
  AbortWord abort_word() const;
  // Tells the front that the request has started on the GPU.
  void Start();
  void SetIssued() { is_issued_ = true; }
  // Marks a point that is kept until this object is destroyed.
  absl::StatusOr<LanePoint> Mark(Lane lane, int64_t cost_ns);
  bool HasTurn() const { return context_.turns.HasTurn(id_, uses_); }
  void LeaveTurns() { context_.turns.Leave(id_, uses_); }
  // Takes a range of the arena for the lifetime of the request. Returns false if there will be
  // memory later.
  absl::StatusOr<bool> TakeRange(int64_t bytes);
  std::byte* range() const { return range_.memory; }
  bool HasRoom(Lane lane) const { return context_.lanes.outstanding_ns(lane) <= kMaxAheadNs; }

 private:
  bool IsAborted() const;

  RunContext& context_;
  const uint64_t id_;
  const uint32_t slot_;
  const BlockUses uses_;
  std::vector<LanePoint> points_;
  DeviceArena::Range range_;
  absl::Status outcome_;
  bool is_started_ = false;
  bool is_issued_ = false;
};

// At 12 GB/s, as over PCIe 3.
constexpr int64_t CopyNs(int64_t bytes) { return bytes / 12; }

// Panels: parts of a launch that would occupy a GPU for too long, because a launch cannot be
// interrupted between tiles of D. Every element of D is a separate sum, so panels do not change any
// bit. Sums are not divided, because kernels begin them at zero; kernels check for an abort during
// long sums (kernels/cuda/device/mainloop/abort.cuh). A launch is divided over the batch first,
// because each panel packs shared operands again; a single matrix is divided over columns, or over
// rows if D has more rows.
struct GpuPanels {
  enum class Axis : uint8_t { kBatch, kRows, kColumns };
  Axis axis = Axis::kBatch;
  int64_t extent = 0;  // Extent of the problem along the axis.
  int64_t step = 0;    // Extent of every panel except the last.

  int64_t count() const { return extent == 0 ? 0 : (extent - 1) / step + 1; }
};

// Divides a problem that should take `predicted_ns` into panels of some 10 ms. There may be fewer
// panels, to keep lines aligned for LaunchOnStream.
GpuPanels DivideLaunch(const Problem& problem, int64_t predicted_ns);

// The problem of one panel, whose places are relative to the matrices of the whole, and its launch:
// pointers into the matrices of `args`. The panel's kernel, workspace and flags are those of the
// whole.
PanelProblem ProblemOfGpuPanel(const Problem& problem, const GpuPanels& panels, int64_t index);
GemmArgs PanelArgs(const GemmArgs& args, const PanelProblem& panel);
// Bytes of the workspace that suffices for each panel; a small one may need more than the whole.
// Errors: those of Kernel::workspace_bytes.
absl::StatusOr<int64_t> WorkspaceOfPanels(const Kernel& kernel, const Problem& problem,
                                          const GpuPanels& panels);

// A request about a block: to allocate or free it, or to copy into or out of it.
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

// A request to compute some elements of a D again.
class RecomputeRun final : public Run {
 public:
  // The request was checked (CheckRecomputeRequest).
  RecomputeRun(RunContext& context, const RecomputeRequest& request);

 protected:
  absl::Status Issue() override;
  absl::Status FillTimes(Result& result) override;

 private:
  const Kernel& kernel() const;
  absl::Status CheckNumbers() const;
  absl::Status IssueGathers();
  absl::Status IssueLaunch();
  absl::Span<const std::byte> Staged(int64_t offset, int64_t bytes) const;

  const RecomputeRequest request_;
  RecomputeLayout layout_;
  int64_t workspace_bytes_ = 0;
  LanePoint begin_;
  LanePoint end_;
};

// A product on its way through a GPU: operands in, kernels, result out. Small products use only the
// kernel lane, which avoids synchronization of lanes.
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

  // Each stage enqueues as much as allowed, and moves to the next stage when finished.
  absl::Status TakeMemory();
  absl::Status FindForms();
  absl::Status IssueIn();
  absl::Status IssueCompute();
  absl::Status BeginCompute();
  absl::Status EndCompute();
  absl::Status MarkD(std::byte* at);
  absl::Status IssueOut();
  absl::Status IssueStage();
  // Writes the copies of matrices in parts to where their list was staged.
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
  int64_t copied_ = 0;  // Bytes copied in this stage.
  GpuPanels panels_;
  int64_t panel_ = 0;
  // The forms of A and B, unless the launch is divided, and their total size.
  OperandForm a_form_;
  OperandForm b_form_;
  int64_t form_bytes_ = 0;
  // Zero if the stage has nothing to do.
  LanePoint in_begin_;
  LanePoint in_end_;
  LanePoint compute_begin_;
  LanePoint compute_end_;
  LanePoint out_begin_;
  LanePoint out_end_;
};

}  // namespace gemmd
