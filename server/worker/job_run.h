// SPDX-License-Identifier: Apache-2.0
//
// A product on its way through a GPU: its operands in, its kernels, its result out. What is small
// goes through the lane of kernels alone, where nothing has to follow another lane.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/crossing/gpu_panels.h"
#include "server/crossing/protocol.h"
#include "server/worker/job_memory.h"
#include "server/worker/run.h"

namespace gemmd {

class JobRun final : public Run {
 public:
  // The request was checked (CheckJob).
  JobRun(RunContext& context, const JobRequest& request);
  ~JobRun() override;

 protected:
  absl::Status Issue() override;
  absl::Status FillTimes(Result& result) override;

 private:
  enum class Stage : uint8_t { kMemory, kIn, kCompute, kOut, kIssued };

  JobRun(RunContext& context, const JobRequest& request, std::vector<PlacedPart> parts);

  // Each asks for what there is room for, and goes on to the next stage once that is all.
  absl::Status TakeMemory();
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
  DeviceArena::Range range_;
  Lane in_lane_ = Lane::kIn;
  Lane out_lane_ = Lane::kOut;
  Stage stage_ = Stage::kMemory;
  int64_t copied_ = 0;  // Bytes of this stage.
  GpuPanels panels_;
  int64_t panel_ = 0;
  // Zero where the stage has nothing to do.
  LanePoint in_begin_;
  LanePoint in_end_;
  LanePoint compute_begin_;
  LanePoint compute_end_;
  LanePoint out_begin_;
  LanePoint out_end_;
};

}  // namespace gemmd
