// SPDX-License-Identifier: Apache-2.0
#include "server/worker/job_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/catalog.h"
#include "kernels/status_macros.h"

namespace gemmd {
namespace {

// A link of 12 GB/s, as that of PCIe 3, takes 11 ms for it.
constexpr int64_t kCopiedAtOnce = int64_t{128} << 20;

// Copying so much takes no longer than two lanes take to follow each other.
constexpr int64_t kMostInOneLane = int64_t{256} << 10;

// Taken out of the staging area once, so that what is checked is what is used.
std::vector<PlacedPart> StagedParts(const Staging& staging, const JobRequest& request) {
  std::vector<PlacedPart> parts(static_cast<size_t>(CountParts(request.places)));
  const absl::StatusOr<JobLayout> layout = LayOutJob(request.problem, request.places);
  if (parts.empty() || !layout.ok()) return parts;
  const std::byte* const list =
      staging.matrices().data() + request.staged_inputs + layout->parts.offset;
  std::memcpy(parts.data(), list, parts.size() * sizeof(PlacedPart));
  return parts;
}

}  // namespace

JobRun::JobRun(RunContext& context, const JobRequest& request)
    : JobRun(context, request, StagedParts(context.staging, request)) {}

JobRun::JobRun(RunContext& context, const JobRequest& request, std::vector<PlacedPart> parts)
    : Run(context, request.id, request.slot, UsesOf(request.places, parts)),
      request_(request),
      parts_(std::move(parts)) {}

JobRun::~JobRun() { context().arena.GiveBack(range_); }

const Kernel& JobRun::kernel() const { return Catalog(DeviceKind::kCuda)[request_.kernel]; }

absl::Span<std::byte> JobRun::Staged(int64_t offset, int64_t bytes) const {
  return context().staging.matrices().subspan(static_cast<size_t>(offset),
                                              static_cast<size_t>(bytes));
}

// Goes on as long as stages come to their end.
absl::Status JobRun::Issue() {
  Stage before = Stage::kIssued;
  while (stage_ != before && stage_ != Stage::kIssued) {
    before = stage_;
    RETURN_IF_ERROR(IssueStage());
  }
  if (stage_ == Stage::kIssued) SetIssued();
  return absl::OkStatus();
}

absl::Status JobRun::IssueStage() {
  switch (stage_) {
    case Stage::kMemory: return TakeMemory();
    case Stage::kIn: return IssueIn();
    case Stage::kCompute: return IssueCompute();
    case Stage::kOut: return IssueOut();
    case Stage::kIssued: break;
  }
  return absl::OkStatus();
}

absl::Status JobRun::TakeMemory() {
  RunContext& context = this->context();
  if (context.is_memory_short) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t workspace_bytes, kernel().workspace_bytes(request_.problem));
  ASSIGN_OR_RETURN(memory_, JobMemory::Of(request_, parts_, workspace_bytes, context.blocks));
  context.arena.SetLimit(context.free_bytes() + context.arena.bytes());
  absl::StatusOr<DeviceArena::Range> range = context.arena.Reserve(memory_.bytes());
  const bool may_wait = absl::IsUnavailable(range.status()) ||
                        (absl::IsResourceExhausted(range.status()) && !context.is_first);
  if (may_wait) {
    context.is_memory_short = true;
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(range.status());
  range_ = *range;
  StagePartCopies();
  const JobLayout& layout = memory_.layout();
  if (layout.end <= kMostInOneLane) in_lane_ = out_lane_ = Lane::kCompute;
  stage_ = Stage::kIn;
  return absl::OkStatus();
}

void JobRun::StagePartCopies() const {
  static_assert(sizeof(CopiedPart) == sizeof(PlacedPart));
  if (parts_.empty()) return;
  const std::vector<CopiedPart> copies = memory_.PartCopies(range_.memory);
  const JobRange& list = memory_.layout().parts;
  std::memcpy(Staged(request_.staged_inputs + list.offset, list.bytes).data(), copies.data(),
              copies.size() * sizeof(CopiedPart));
}

absl::Status JobRun::CopyParts(int64_t first, int64_t count) {
  if (count == 0) return absl::OkStatus();
  const auto* const list =
      reinterpret_cast<const CopiedPart*>(range_.memory + memory_.layout().parts.offset);
  return context().runtime.CopyParts(Lane::kCompute, list + first, count,
                                     memory_.most_part_bytes());
}

bool JobRun::MayCompute() const {
  const uint64_t computing = context().computing;
  return (computing == 0 || computing == id()) && HasTurn() && HasRoom(Lane::kCompute);
}

absl::Status JobRun::IssueIn() {
  if (in_lane_ == Lane::kCompute && !MayCompute()) return absl::OkStatus();
  if (in_lane_ == Lane::kCompute) context().computing = id();
  GpuRuntime& gpu = context().runtime;
  const int64_t input_bytes = memory_.layout().input_bytes + memory_.staged_mark_bytes();
  const int64_t cleared_bytes = memory_.cleared_bytes() - memory_.staged_mark_bytes();
  if (input_bytes + cleared_bytes > 0 && in_begin_.number == 0) {
    Start();
    ASSIGN_OR_RETURN(in_begin_, Mark(in_lane_, 0));
  }
  while (copied_ < input_bytes) {
    if (!HasRoom(in_lane_)) return absl::OkStatus();
    const int64_t bytes = std::min(kCopiedAtOnce, input_bytes - copied_);
    RETURN_IF_ERROR(gpu.CopyIn(in_lane_, range_.memory + copied_,
                               Staged(request_.staged_inputs + copied_, bytes)));
    copied_ += bytes;
    if (copied_ < input_bytes) RETURN_IF_ERROR(Mark(in_lane_, CopyNs(bytes)).status());
  }
  // All that the copy did not overwrite: nothing of an earlier job, which may have been another
  // caller's, is left to this one.
  if (cleared_bytes > 0) {
    RETURN_IF_ERROR(gpu.Clear(in_lane_, range_.memory + input_bytes, cleared_bytes));
  }
  if (input_bytes + cleared_bytes > 0) {
    ASSIGN_OR_RETURN(in_end_, Mark(in_lane_, CopyNs(std::min(input_bytes, kCopiedAtOnce))));
  }
  stage_ = Stage::kCompute;
  return absl::OkStatus();
}

absl::Status JobRun::BeginCompute() {
  RunContext& context = this->context();
  context.computing = id();
  Start();
  RETURN_IF_ERROR(context.lanes.Follow(Lane::kCompute, in_end_.lane, in_end_.number));
  RETURN_IF_ERROR(context.blocks.Follow(context.lanes, Lane::kCompute, uses()));
  if (in_lane_ == Lane::kCompute && in_end_.number != 0) {
    compute_begin_ = in_end_;
  } else {
    ASSIGN_OR_RETURN(compute_begin_, Mark(Lane::kCompute, 0));
  }
  for (const MemoryLines& lines : memory_.CopiesIn(range_.memory)) {
    RETURN_IF_ERROR(context.runtime.CopyLines(Lane::kCompute, lines));
  }
  RETURN_IF_ERROR(CopyParts(0, memory_.operand_parts()));
  // Operands that D overlaps were copied: what the mark overwrites is only D. The first launch,
  // which is made at once, writes over it, so that nobody reads the mark of what is cut short.
  if (memory_.layout().has_receipt()) RETURN_IF_ERROR(MarkD(memory_.MarkedIn(range_.memory)));
  panels_ = DivideLaunch(request_.problem, request_.predicted_ns);
  return absl::OkStatus();
}

// The mark waits in the receipt.
absl::Status JobRun::MarkD(std::byte* at) {
  if (memory_.mark().bytes == 0) return absl::OkStatus();
  return context().runtime.CopyIn(Lane::kCompute, at,
                                  Staged(request_.staged_d, memory_.mark().bytes));
}

absl::Status JobRun::IssueCompute() {
  // What has begun in this lane is not divided from the rest.
  if (compute_begin_.number == 0) {
    if (context().computing != id() && !MayCompute()) return absl::OkStatus();
    RETURN_IF_ERROR(BeginCompute());
  }
  const Problem& problem = request_.problem;
  GemmArgs args = memory_.ArgsIn(range_.memory, problem, context().target);
  args.abort_word = abort_word();
  const int64_t count = problem.has_output() ? std::max<int64_t>(1, panels_.count()) : 0;
  const int64_t panel_ns = request_.predicted_ns / std::max<int64_t>(1, count);
  while (panel_ < count) {
    if (panel_ > 0 && !HasRoom(Lane::kCompute)) return absl::OkStatus();
    if (count == 1) {
      RETURN_IF_ERROR(context().runtime.Launch(kernel(), args));
    } else {
      const Problem panel = ProblemOfGpuPanel(problem, panels_, panel_);
      RETURN_IF_ERROR(context().runtime.Launch(kernel(), PanelArgs(args, panels_, panel_, panel)));
    }
    ++panel_;
    if (panel_ < count) RETURN_IF_ERROR(Mark(Lane::kCompute, panel_ns).status());
    // Whether anybody still wants the rest.
    if (panel_ < count) return absl::OkStatus();
  }
  return EndCompute();
}

absl::Status JobRun::EndCompute() {
  RunContext& context = this->context();
  const bool has_receipt = memory_.layout().has_receipt();
  std::byte* const kept = has_receipt ? memory_.KeptIn(range_.memory) : nullptr;
  if (has_receipt && kept != memory_.MarkedIn(range_.memory)) RETURN_IF_ERROR(MarkD(kept));
  for (const MemoryLines& lines : memory_.CopiesOut(range_.memory, request_.problem)) {
    RETURN_IF_ERROR(context.runtime.CopyLines(Lane::kCompute, lines));
  }
  RETURN_IF_ERROR(CopyParts(memory_.operand_parts(), memory_.d_parts()));
  if (has_receipt) {
    const int64_t bytes = memory_.mark().bytes == 0 ? kMarkBytes : memory_.mark().bytes;
    RETURN_IF_ERROR(
        context.runtime.CopyOut(Lane::kCompute, Staged(request_.staged_d, bytes), kept));
  }
  ASSIGN_OR_RETURN(compute_end_, Mark(Lane::kCompute, request_.predicted_ns /
                                                          std::max<int64_t>(1, panels_.count())));
  context.blocks.SetUsedUntil(compute_end_, uses());
  LeaveTurns();
  context.computing = 0;
  copied_ = 0;
  stage_ = memory_.layout().is_d_staged() ? Stage::kOut : Stage::kIssued;
  return absl::OkStatus();
}

absl::Status JobRun::IssueOut() {
  GpuRuntime& gpu = context().runtime;
  const int64_t d_bytes = memory_.layout().written_bytes();
  if (out_begin_.number == 0) {
    if (out_lane_ == Lane::kCompute) {
      out_begin_ = compute_end_;
    } else {
      RETURN_IF_ERROR(context().lanes.Follow(out_lane_, Lane::kCompute, compute_end_.number));
      ASSIGN_OR_RETURN(out_begin_, Mark(out_lane_, 0));
    }
  }
  while (copied_ < d_bytes) {
    if (copied_ > 0 && !HasRoom(out_lane_)) return absl::OkStatus();
    const int64_t bytes = std::min(kCopiedAtOnce, d_bytes - copied_);
    RETURN_IF_ERROR(gpu.CopyOut(out_lane_, Staged(request_.staged_d + copied_, bytes),
                                memory_.StagedD(range_.memory) + copied_));
    copied_ += bytes;
    if (copied_ < d_bytes) RETURN_IF_ERROR(Mark(out_lane_, CopyNs(bytes)).status());
  }
  ASSIGN_OR_RETURN(out_end_, Mark(out_lane_, CopyNs(std::min(d_bytes, kCopiedAtOnce))));
  stage_ = Stage::kIssued;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> JobRun::Between(const LanePoint& start, const LanePoint& end) {
  if (end.number == 0) return 0;
  return context().lanes.NanosecondsBetween(start, end);
}

absl::Status JobRun::FillTimes(Result& result) {
  ASSIGN_OR_RETURN(result.copy_in_ns, Between(in_begin_, in_end_));
  ASSIGN_OR_RETURN(result.compute_ns, Between(compute_begin_, compute_end_));
  ASSIGN_OR_RETURN(result.copy_out_ns, Between(out_begin_, out_end_));
  return absl::OkStatus();
}

}  // namespace gemmd
