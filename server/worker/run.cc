// SPDX-License-Identifier: Apache-2.0
#include "server/worker/run.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "kernels/verify/sub_product.h"

namespace gemmd {
namespace {

using Axis = GpuPanels::Axis;

constexpr int64_t kAlignment = 256;  // Bytes: kJobAlignment.

// The nearest multiple of the granule, at least one.
int64_t StepOf(int64_t extent, int64_t parts, int64_t granule) {
  const int64_t wanted = (extent - 1) / parts + 1;
  return std::min(extent, std::max<int64_t>(1, (wanted + granule / 2) / granule) * granule);
}

// After how many matrices the alignment repeats.
int64_t BatchGranule(const Problem& problem) {
  const auto is_aligned = [](const MatrixLayout& layout) {
    return layout.batch_stride_bytes % kAlignment == 0;
  };
  const bool are_aligned =
      is_aligned(problem.d) && (!problem.has_c() || is_aligned(problem.c)) &&
      (!problem.has_product() || (is_aligned(problem.a) && is_aligned(problem.b)));
  return are_aligned ? 1 : kAlignment;
}

// A multiple of lines (of any length) and of elements (of each type) that keeps alignment. A
// multiple of kernel tiles and, along the axis, of blocks that share factors.
int64_t MatrixGranule(const Problem& problem, Axis axis) {
  int64_t granule = kAlignment;
  const auto heed = [&](ElementType type) {
    granule = std::lcm(granule, 8 * kAlignment / std::gcd(8 * kAlignment, BitsOf(type)));
  };
  heed(problem.d.type);
  if (problem.has_c()) heed(problem.c.type);
  if (problem.bias_axis != BiasAxis::kNone) heed(problem.bias_type);
  if (!problem.has_product()) return granule;
  heed(problem.a.type);
  heed(problem.b.type);
  const bool is_rows = axis == Axis::kRows;
  const BlockScale* const blocks = is_rows ? problem.blocks_of_a() : problem.blocks_of_b();
  if (blocks == nullptr) return granule;
  const int64_t extent = is_rows ? problem.m : problem.n;
  // The factors of a part of each matrix have gaps between the matrices, which no launch skips.
  if (blocks->per_matrix && problem.batch > 1) return extent;
  return blocks->GranuleOf(granule, extent);
}

// A block being allocated is not in use: nobody else knows its number.
BlockUses UsesOf(const MemoryRequest& request) {
  if (request.action == MemoryAction::kAllocate) return {};
  return {{.block = request.block, .is_write = request.action != MemoryAction::kRead}};
}

// D is only read.
BlockUses UsesOf(const RecomputeTask& task) {
  JobPlaces places = task.places;
  const uint64_t d = std::exchange(places.d.block, 0);
  BlockUses uses = UsesOf(places);
  const bool is_known =
      std::any_of(uses.begin(), uses.end(), [d](const BlockUse& use) { return use.block == d; });
  if (d != 0 && !is_known) uses.push_back({.block = d});
  return uses;
}

BlockUses UsesOf(const CompressTask& task) {
  JobPlaces places;
  places.a.block = task.dense_block;
  places.b.block = task.mask_block;
  places.d.block = task.result_block;
  return UsesOf(places);
}

// Takes 11 ms over a 12 GB/s link (PCIe 3).
constexpr int64_t kCopiedAtOnce = int64_t{128} << 20;

// Copying this much takes no longer than synchronizing two lanes. If nothing else is in progress,
// it delays nobody either.
constexpr int64_t kMaxInOneLane = int64_t{256} << 10;
constexpr int64_t kMaxInOneLaneAlone = int64_t{1} << 20;

// Copied out of the staging area once, so that the checked values are the used ones.
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

std::byte* RunContext::Seen(const std::byte* staged) const {
  return seen_staging + (staged - staging.whole().data());
}

int64_t RunContext::free_bytes() const {
  return memory_limit_bytes - arena.bytes() - blocks.bytes();
}

Run::Run(RunContext& context, uint64_t id, uint32_t slot, BlockUses uses)
    : context_(context), id_(id), slot_(slot), uses_(std::move(uses)) {
  context_.turns.Enter(id_, uses_);
}

Run::~Run() {
  context_.arena.GiveBack(range_);
  LeaveTurns();
  for (const LanePoint& point : points_) context_.lanes.Release(point);
  if (context_.computing == id_) context_.computing = 0;
}

absl::StatusOr<bool> Run::TakeRange(int64_t bytes) {
  if (context_.is_memory_short) return false;
  context_.arena.SetLimit(context_.free_bytes() + context_.arena.bytes());
  absl::StatusOr<DeviceArena::Range> range = context_.arena.Reserve(bytes);
  const bool may_wait = absl::IsUnavailable(range.status()) ||
                        (absl::IsResourceExhausted(range.status()) && !context_.is_first);
  if (may_wait) {
    context_.is_memory_short = true;
    return false;
  }
  ASSIGN_OR_RETURN(range_, std::move(range));
  return true;
}

void Run::Start() {
  if (is_started_) return;
  is_started_ = true;
  context_.staging.control().started_ids[slot_].store(id_, std::memory_order_release);
}

absl::StatusOr<LanePoint> Run::Mark(Lane lane, int64_t cost_ns) {
  ASSIGN_OR_RETURN(const LanePoint point, context_.lanes.Mark(lane, cost_ns));
  points_.push_back(point);
  return point;
}

bool Run::IsAborted() const {
  return context_.staging.control().aborted_ids[slot_].load(std::memory_order_relaxed) == id_;
}

AbortWord Run::abort_word() const {
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  const std::atomic<uint64_t>& word = context_.staging.control().aborted_ids[slot_];
  const auto* const bytes = reinterpret_cast<const std::byte*>(&word);
  return {.word = reinterpret_cast<const uint64_t*>(context_.Seen(bytes)), .value = id_};
}

absl::Status Run::Advance() {
  if (is_issued_) return absl::OkStatus();
  if (IsAborted()) return AbortedLaunch();
  return Issue();
}

void Run::End(const absl::Status& status) {
  outcome_ = status;
  is_issued_ = true;
  LeaveTurns();
  if (context_.computing == id_) context_.computing = 0;
}

absl::Status Run::AwaitAll() {
  // Later requests that use the same blocks must wait too.
  for (const Lane lane : kAllLanes) {
    ASSIGN_OR_RETURN(const LanePoint point, Mark(lane, 0));
    context_.blocks.SetUsedUntil(point, uses_);
  }
  return absl::OkStatus();
}

bool Run::IsDone() const {
  return is_issued_ && std::all_of(points_.begin(), points_.end(), [this](const LanePoint& point) {
           return context_.lanes.IsReached(point);
         });
}

Result Run::MakeResult() {
  Result result;
  result.id = id_;
  // An aborted kernel may not have written D.
  if (outcome_.ok() && IsAborted()) outcome_ = AbortedLaunch();
  if (outcome_.ok()) outcome_ = FillTimes(result);
  result.status.Set(outcome_);
  return result;
}

GpuPanels DivideLaunch(const Problem& problem, int64_t predicted_ns) {
  const int64_t parts = std::max<int64_t>(1, (predicted_ns - 1) / kLongestWholeLaunchNs + 1);
  if (parts == 1) return {Axis::kBatch, problem.batch, problem.batch};
  const GpuPanels over_batch = {Axis::kBatch, problem.batch,
                                StepOf(problem.batch, parts, BatchGranule(problem))};
  // Values and indices of a sparse A are stored separately, so its rows are not divided.
  const bool is_over_rows = problem.m > problem.n && !problem.a.is_sparse();
  const int64_t extent = is_over_rows ? problem.m : problem.n;
  const Axis axis = is_over_rows ? Axis::kRows : Axis::kColumns;
  const GpuPanels over_matrix = {axis, extent, StepOf(extent, parts, MatrixGranule(problem, axis))};
  return over_batch.count() >= over_matrix.count() ? over_batch : over_matrix;
}

PanelProblem ProblemOfGpuPanel(const Problem& problem, const GpuPanels& panels, int64_t index) {
  Panel panel = {.matrices = {0, problem.batch}, .rows = {0, problem.m}, .columns = {0, problem.n}};
  Panel::Extent& divided = panels.axis == Axis::kBatch  ? panel.matrices
                           : panels.axis == Axis::kRows ? panel.rows
                                                        : panel.columns;
  divided.first = index * panels.step;
  divided.count = std::min(panels.step, panels.extent - divided.first);
  // Matrices in blocks keep their strides.
  JobPlaces places;
  for (const OperandRole role : kOperandRoles) places[role].block = 1;
  places.d.block = 1;
  return ProblemOfPanel(problem, places, panel);
}

// All panels but the last have the same extents.
absl::StatusOr<int64_t> WorkspaceOfPanels(const Kernel& kernel, const Problem& problem,
                                          const GpuPanels& panels) {
  if (panels.count() <= 1) return kernel.workspace_bytes(problem);
  int64_t max = 0;
  for (const int64_t index : {int64_t{0}, panels.count() - 1}) {
    ASSIGN_OR_RETURN(const int64_t bytes,
                     kernel.workspace_bytes(ProblemOfGpuPanel(problem, panels, index).problem));
    max = std::max(max, bytes);
  }
  return max;
}

GemmArgs PanelArgs(const GemmArgs& args, const PanelProblem& panel) {
  const JobPlaces& places = panel.places;
  const auto at = [](auto* matrix, const JobPlace& place) {
    return matrix == nullptr ? matrix : matrix + place.offset;
  };
  const auto scale = [](absl::Span<const float> whole, const JobPlace& place, int64_t extent) {
    const size_t first = static_cast<size_t>(place.offset) / sizeof(float);
    return whole.size() > 1 ? whole.subspan(first, static_cast<size_t>(extent)) : whole;
  };
  return {.problem = panel.problem,
          .target = args.target,
          .a = at(args.a, places.a),
          .b = at(args.b, places.b),
          .c = at(args.c, places.c),
          .bias = at(args.bias, places.bias),
          .a_scale = scale(args.a_scale, places.a_scale, panel.problem.m),
          .b_scale = scale(args.b_scale, places.b_scale, panel.problem.n),
          .d = at(args.d, places.d),
          .workspace = args.workspace,
          .abort = args.abort,
          .abort_word = args.abort_word,
          .a_factors = at(args.a_factors, places.a_scale),
          .b_factors = at(args.b_factors, places.b_scale)};
}

MemoryRun::MemoryRun(RunContext& context, const MemoryRequest& request)
    : Run(context, request.id, request.slot, UsesOf(request)), request_(request) {}

absl::Status MemoryRun::Issue() {
  switch (request_.action) {
    case MemoryAction::kAllocate: return Allocate();
    case MemoryAction::kFree: return Free();
    case MemoryAction::kWrite:
    case MemoryAction::kRead: return Copy();
  }
  return absl::InternalError("action: unknown");
}

// OK if there is space, Unavailable if there may be once earlier requests are done.
absl::Status MemoryRun::CheckRoom() {
  RunContext& context = this->context();
  const int64_t bytes = request_.bytes;
  if (bytes > context.free_bytes()) context.arena.FreeIdle();
  if (bytes <= context.free_bytes()) return absl::OkStatus();
  if (!context.is_first) return absl::UnavailableError("device memory: in use by earlier requests");
  return absl::ResourceExhaustedError(
      GotWant("device memory", Concat("a block of ", bytes, " bytes"),
              Concat("at most ", context.free_bytes(), ", which are free")));
}

absl::Status MemoryRun::Allocate() {
  RunContext& context = this->context();
  const absl::Status room = CheckRoom();
  if (absl::IsUnavailable(room)) return absl::OkStatus();
  RETURN_IF_ERROR(room);
  absl::StatusOr<std::byte*> memory = context.blocks.Add(request_.block, request_.bytes);
  if (absl::IsResourceExhausted(memory.status()) && !context.is_first) return absl::OkStatus();
  RETURN_IF_ERROR(memory.status());
  // Clears the previous owner's data.
  const absl::Status cleared = context.runtime.Clear(Lane::kIn, *memory, request_.bytes);
  if (!cleared.ok()) {
    context.blocks.Remove(request_.block);
    return cleared;
  }
  Start();
  ASSIGN_OR_RETURN(end_, Mark(Lane::kIn, CopyNs(request_.bytes) / 100));
  begin_ = end_;
  context.blocks.SetUsedUntil(end_, {{.block = request_.block, .is_write = true}});
  SetIssued();
  return absl::OkStatus();
}

absl::Status MemoryRun::Free() {
  RunContext& context = this->context();
  RETURN_IF_ERROR(context.blocks.Find(request_.block, 0, 0).status());
  if (!HasTurn() || !context.blocks.IsUnused(context.lanes, request_.block)) {
    return absl::OkStatus();
  }
  context.blocks.Remove(request_.block);
  SetIssued();
  return absl::OkStatus();
}

absl::Status MemoryRun::Copy() {
  RunContext& context = this->context();
  const bool is_write = request_.action == MemoryAction::kWrite;
  const Lane lane = is_write ? Lane::kIn : Lane::kOut;
  ASSIGN_OR_RETURN(std::byte* const memory,
                   context.blocks.Find(request_.block, request_.offset, request_.bytes));
  if (!HasTurn() || !HasRoom(lane)) return absl::OkStatus();
  const auto staged = context.staging.matrices().subspan(static_cast<size_t>(request_.staged),
                                                         static_cast<size_t>(request_.bytes));
  Start();
  RETURN_IF_ERROR(context.blocks.Follow(context.lanes, lane, uses()));
  ASSIGN_OR_RETURN(begin_, Mark(lane, 0));
  RETURN_IF_ERROR(is_write ? context.runtime.CopyIn(lane, memory, staged)
                           : context.runtime.CopyOut(lane, staged, memory));
  ASSIGN_OR_RETURN(end_, Mark(lane, CopyNs(request_.bytes)));
  context.blocks.SetUsedUntil(end_, uses());
  LeaveTurns();
  SetIssued();
  return absl::OkStatus();
}

absl::Status MemoryRun::FillTimes(Result& result) {
  if (request_.action != MemoryAction::kWrite && request_.action != MemoryAction::kRead) {
    return absl::OkStatus();
  }
  int64_t& ns = request_.action == MemoryAction::kWrite ? result.copy_in_ns : result.copy_out_ns;
  ASSIGN_OR_RETURN(ns, context().lanes.NanosecondsBetween(begin_, end_));
  return absl::OkStatus();
}

CompressRun::CompressRun(RunContext& context, const CompressRequest& request)
    : Run(context, request.id, request.slot, UsesOf(request.task)), request_(request) {}

absl::Status CompressRun::Issue() {
  RunContext& context = this->context();
  const CompressTask& task = request_.task;
  ASSIGN_OR_RETURN(const CompressBytes bytes, BytesOf(task));
  ASSIGN_OR_RETURN(const std::byte* const dense,
                   context.blocks.Find(task.dense_block, 0, bytes.dense));
  const std::byte* mask = nullptr;
  if (task.mask_block != 0) {
    ASSIGN_OR_RETURN(mask, context.blocks.Find(task.mask_block, 0, bytes.mask));
  }
  ASSIGN_OR_RETURN(std::byte* const result,
                   context.blocks.Find(task.result_block, 0, bytes.result));
  // For the result: the first bad group.
  bool has_memory = range() != nullptr;
  if (!has_memory) {
    ASSIGN_OR_RETURN(has_memory, TakeRange(kJobAlignment));
  }
  const bool has_turn = context.computing == 0 && HasTurn() && HasRoom(Lane::kCompute);
  if (!has_memory || !has_turn) return absl::OkStatus();
  Start();
  RETURN_IF_ERROR(context.blocks.Follow(context.lanes, Lane::kCompute, uses()));
  ASSIGN_OR_RETURN(begin_, Mark(Lane::kCompute, 0));
  RETURN_IF_ERROR(context.runtime.Compress(ViewOf(task, dense, mask, result),
                                           reinterpret_cast<BadGroup*>(range())));
  ASSIGN_OR_RETURN(compressed_, Mark(Lane::kCompute, request_.predicted_ns));
  const auto staged =
      context.staging.matrices().subspan(static_cast<size_t>(request_.staged), sizeof(BadGroup));
  RETURN_IF_ERROR(context.runtime.CopyOut(Lane::kCompute, staged, range()));
  ASSIGN_OR_RETURN(end_, Mark(Lane::kCompute, 0));
  context.blocks.SetUsedUntil(compressed_, uses());
  LeaveTurns();
  SetIssued();
  return absl::OkStatus();
}

absl::Status CompressRun::FillTimes(Result& result) {
  ASSIGN_OR_RETURN(result.compute_ns, context().lanes.NanosecondsBetween(begin_, compressed_));
  ASSIGN_OR_RETURN(result.copy_out_ns, context().lanes.NanosecondsBetween(compressed_, end_));
  return absl::OkStatus();
}

RecomputeRun::RecomputeRun(RunContext& context, const RecomputeRequest& request)
    : Run(context, request.id, request.slot, UsesOf(request.task)), request_(request) {}

const Kernel& RecomputeRun::kernel() const { return Catalog(DeviceKind::kCuda)[request_.kernel]; }

absl::Status RecomputeRun::CheckNumbers() const {
  const RecomputeTask& task = request_.task;
  const auto* const numbers =
      reinterpret_cast<const int64_t*>(context().staging.matrices().data() + request_.staged_in);
  for (int64_t i = 0; i < task.rows + task.columns; ++i) {
    const int64_t extent = i < task.rows ? task.problem.m : task.problem.n;
    if (numbers[i] >= 0 && numbers[i] < extent) continue;
    return absl::InvalidArgumentError(
        GotWant("recompute", Concat("row or column ", numbers[i]), Concat("0 to ", extent - 1)));
  }
  return absl::OkStatus();
}

absl::Status RecomputeRun::Issue() {
  RunContext& context = this->context();
  if (range() == nullptr) {
    RETURN_IF_ERROR(CheckNumbers());
    ASSIGN_OR_RETURN(layout_, LayOutRecompute(request_.task));
    ASSIGN_OR_RETURN(workspace_bytes_, kernel().workspace_bytes(layout_.sub));
    ASSIGN_OR_RETURN(const bool has_memory, TakeRange(layout_.end + workspace_bytes_));
    if (!has_memory) return absl::OkStatus();
  }
  if (!HasTurn() || !HasRoom(Lane::kCheck)) return absl::OkStatus();
  Start();
  RETURN_IF_ERROR(context.blocks.Follow(context.lanes, Lane::kCheck, uses()));
  ASSIGN_OR_RETURN(begin_, Mark(Lane::kCheck, 0));
  RETURN_IF_ERROR(IssueGathers());
  RETURN_IF_ERROR(IssueLaunch());
  ASSIGN_OR_RETURN(end_, Mark(Lane::kCheck, request_.predicted_ns));
  context.blocks.SetUsedUntil(end_, uses());
  LeaveTurns();
  SetIssued();
  return absl::OkStatus();
}

// Gathers the operands and the elements that were found.
absl::Status RecomputeRun::IssueGathers() {
  RunContext& context = this->context();
  const RecomputeTask& task = request_.task;
  const auto copy_in = [&](int64_t to, int64_t staged, int64_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    return context.runtime.CopyIn(Lane::kCheck, range() + to, Staged(staged, bytes));
  };
  const int64_t numbers = (task.rows + task.columns) * int64_t{sizeof(int64_t)};
  RETURN_IF_ERROR(copy_in(0, 0, numbers));
  // No data of an earlier job may remain.
  RETURN_IF_ERROR(context.runtime.Clear(Lane::kCheck, range() + layout_.computed(),
                                        layout_.out_bytes() + workspace_bytes_));
  RETURN_IF_ERROR(copy_in(layout_.computed(), layout_.mark_offset(), layout_.mark.bytes));
  const auto* const rows = reinterpret_cast<const int64_t*>(range());
  const verify::Crossing crossing = {.rows = rows, .columns = rows + task.rows};
  absl::InlinedVector<ElementGather, 8> gathers;
  for (const OperandRole role : kOperandRoles) {
    const ByteRange& operand = layout_.operands[role];
    const JobPlace& place = task.places[role];
    if (operand.bytes == 0) continue;
    if (place.block == 0) {
      RETURN_IF_ERROR(copy_in(layout_.lists + operand.offset,
                              layout_.lists + layout_.staged[role].offset, operand.bytes));
      continue;
    }
    ASSIGN_OR_RETURN(const std::byte* const from,
                     context.blocks.Find(place.block, place.offset, layout_.whole[role].bytes));
    for (const ElementGather& gather :
         verify::GathersOf(task.problem, layout_.sub, role, crossing, from,
                           range() + layout_.lists + operand.offset)) {
      gathers.push_back(gather);
    }
  }
  if (const JobPlace& d = task.places.d; d.block != 0) {
    ASSIGN_OR_RETURN(const std::byte* const from,
                     context.blocks.Find(d.block, d.offset, layout_.whole.d.bytes));
    gathers.push_back(
        verify::GatherOfD(task.problem, layout_.sub, crossing, from, range() + layout_.found));
  }
  if (gathers.empty()) return absl::OkStatus();
  return context.runtime.Gather(Lane::kCheck, gathers);
}

// Launches the kernel, and copies both results out.
absl::Status RecomputeRun::IssueLaunch() {
  RunContext& context = this->context();
  GemmArgs args = ArgsAt(layout_.sub, context.target, layout_.operands, range() + layout_.lists,
                         {range() + layout_.end, static_cast<size_t>(workspace_bytes_)});
  args.abort_word = abort_word();
  RETURN_IF_ERROR(context.runtime.Launch(Lane::kCheck, kernel(), args));
  const int64_t bytes = layout_.out_bytes();
  const auto staged = context.staging.matrices().subspan(static_cast<size_t>(request_.staged_out),
                                                         static_cast<size_t>(bytes));
  return context.runtime.CopyOut(Lane::kCheck, staged, range() + layout_.computed());
}

absl::Span<const std::byte> RecomputeRun::Staged(int64_t offset, int64_t bytes) const {
  return context().staging.matrices().subspan(static_cast<size_t>(request_.staged_in + offset),
                                              static_cast<size_t>(bytes));
}

absl::Status RecomputeRun::FillTimes(Result& result) {
  ASSIGN_OR_RETURN(result.compute_ns, context().lanes.NanosecondsBetween(begin_, end_));
  return absl::OkStatus();
}

JobRun::JobRun(RunContext& context, const JobRequest& request)
    : JobRun(context, request, StagedParts(context.staging, request)) {}

JobRun::JobRun(RunContext& context, const JobRequest& request, std::vector<PlacedPart> parts)
    : Run(context, request.id, request.slot, UsesOf(request.places, parts)),
      request_(request),
      parts_(std::move(parts)) {}

const Kernel& JobRun::kernel() const { return Catalog(DeviceKind::kCuda)[request_.kernel]; }

absl::Span<std::byte> JobRun::Staged(int64_t offset, int64_t bytes) const {
  return context().staging.matrices().subspan(static_cast<size_t>(offset),
                                              static_cast<size_t>(bytes));
}

// Continues while stages complete.
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
  RETURN_IF_ERROR(FindForms());
  ASSIGN_OR_RETURN(const int64_t workspace_bytes,
                   WorkspaceOfPanels(kernel(), request_.problem, panels_));
  ASSIGN_OR_RETURN(memory_,
                   JobMemory::Of(request_, parts_, workspace_bytes - form_bytes_, context.blocks,
                                 context.Seen(context.staging.matrices().data())));
  ASSIGN_OR_RETURN(const bool has_memory, TakeRange(memory_.bytes()));
  if (!has_memory) return absl::OkStatus();
  StagePartCopies();
  const JobLayout& layout = memory_.layout();
  const int64_t max_in_one_lane = context.is_first ? kMaxInOneLaneAlone : kMaxInOneLane;
  if (layout.end <= max_in_one_lane) in_lane_ = out_lane_ = Lane::kCompute;
  stage_ = Stage::kIn;
  return absl::OkStatus();
}

// Panels of a launch cannot use forms of the whole A or B.
absl::Status JobRun::FindForms() {
  panels_ = DivideLaunch(request_.problem, request_.predicted_ns);
  form_bytes_ = 0;
  if (panels_.count() > 1) return absl::OkStatus();
  const auto find = [this](const FormPlace& place, mma::Operand operand, OperandForm& form) {
    if (place.block == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(const DerivedOperand derived, kernel().derived(request_.problem, operand));
    if (place.bytes != derived.bytes) {
      return absl::InvalidArgumentError(
          GotWant("form", Concat(place.bytes, " bytes"), Concat(derived.bytes)));
    }
    ASSIGN_OR_RETURN(form.bytes, context().blocks.Find(place.block, 0, place.bytes));
    form.is_made = place.is_made != 0;
    form_bytes_ += place.bytes;
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(find(request_.places.a_form, mma::Operand::kA, a_form_));
  return find(request_.places.b_form, mma::Operand::kB, b_form_);
}

void JobRun::StagePartCopies() const {
  static_assert(sizeof(CopiedPart) == sizeof(PlacedPart));
  if (parts_.empty()) return;
  const std::vector<CopiedPart> copies = memory_.PartCopies(range());
  const ByteRange& list = memory_.layout().parts;
  std::memcpy(Staged(request_.staged_inputs + list.offset, list.bytes).data(), copies.data(),
              copies.size() * sizeof(CopiedPart));
}

absl::Status JobRun::CopyParts(int64_t first, int64_t count) {
  if (count == 0) return absl::OkStatus();
  return context().runtime.CopyParts(Lane::kCompute, memory_.PartList(range()) + first, count,
                                     memory_.max_part_bytes());
}

bool JobRun::MayCompute() const {
  const uint64_t computing = context().computing;
  return (computing == 0 || computing == id()) && HasTurn() && HasRoom(Lane::kCompute);
}

absl::Status JobRun::IssueIn() {
  if (in_lane_ == Lane::kCompute && !MayCompute()) return absl::OkStatus();
  if (in_lane_ == Lane::kCompute) context().computing = id();
  GpuRuntime& gpu = context().runtime;
  const int64_t input_bytes = memory_.copied_in_bytes() + memory_.staged_mark_bytes();
  const int64_t cleared_bytes = memory_.cleared_bytes() - memory_.staged_mark_bytes();
  if (input_bytes + cleared_bytes > 0 && in_begin_.number == 0) {
    Start();
    ASSIGN_OR_RETURN(in_begin_, Mark(in_lane_, 0));
  }
  while (copied_ < input_bytes) {
    if (!HasRoom(in_lane_)) return absl::OkStatus();
    const int64_t bytes = std::min(kCopiedAtOnce, input_bytes - copied_);
    RETURN_IF_ERROR(
        gpu.CopyIn(in_lane_, range() + copied_, Staged(request_.staged_inputs + copied_, bytes)));
    copied_ += bytes;
    if (copied_ < input_bytes) RETURN_IF_ERROR(Mark(in_lane_, CopyNs(bytes)).status());
  }
  // Clears everything that the copy did not overwrite: no data of an earlier job, possibly another
  // caller's, may remain.
  if (cleared_bytes > 0) {
    RETURN_IF_ERROR(gpu.Clear(in_lane_, range() + input_bytes, cleared_bytes));
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
  for (const MemoryLines& lines : memory_.CopiesIn(range())) {
    RETURN_IF_ERROR(context.runtime.CopyLines(Lane::kCompute, lines));
  }
  RETURN_IF_ERROR(CopyParts(0, memory_.operand_parts()));
  // Operands that overlap D were copied, so the mark overwrites only D. The first launch follows at
  // once and overwrites the mark, so that nobody reads it after an abort.
  if (memory_.layout().has_receipt()) RETURN_IF_ERROR(MarkD(memory_.MarkedIn(range())));
  return absl::OkStatus();
}

// The mark is in the receipt.
absl::Status JobRun::MarkD(std::byte* at) {
  if (memory_.mark().bytes == 0) return absl::OkStatus();
  return context().runtime.CopyIn(Lane::kCompute, at,
                                  Staged(request_.staged_d, memory_.mark().bytes));
}

absl::Status JobRun::IssueCompute() {
  // Work already begun in this lane is not separated.
  if (compute_begin_.number == 0) {
    if (context().computing != id() && !MayCompute()) return absl::OkStatus();
    RETURN_IF_ERROR(BeginCompute());
  }
  const Problem& problem = request_.problem;
  GemmArgs args = memory_.ArgsIn(range(), problem, context().target);
  args.abort_word = abort_word();
  args.a_form = a_form_;
  args.b_form = b_form_;
  const int64_t count = problem.has_output() ? std::max<int64_t>(1, panels_.count()) : 0;
  const int64_t panel_ns = request_.predicted_ns / std::max<int64_t>(1, count);
  while (panel_ < count) {
    if (panel_ > 0 && !HasRoom(Lane::kCompute)) return absl::OkStatus();
    if (count == 1) {
      RETURN_IF_ERROR(context().runtime.Launch(Lane::kCompute, kernel(), args));
    } else {
      const PanelProblem panel = ProblemOfGpuPanel(problem, panels_, panel_);
      RETURN_IF_ERROR(context().runtime.Launch(Lane::kCompute, kernel(), PanelArgs(args, panel)));
    }
    ++panel_;
    if (panel_ < count) RETURN_IF_ERROR(Mark(Lane::kCompute, panel_ns).status());
    // Checks for an abort before the rest.
    if (panel_ < count) return absl::OkStatus();
  }
  return EndCompute();
}

absl::Status JobRun::EndCompute() {
  RunContext& context = this->context();
  const bool has_receipt = memory_.layout().has_receipt();
  std::byte* const kept = has_receipt ? memory_.KeptIn(range()) : nullptr;
  if (has_receipt && kept != memory_.MarkedIn(range())) RETURN_IF_ERROR(MarkD(kept));
  for (const MemoryLines& lines : memory_.CopiesOut(range(), request_.problem)) {
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
  stage_ = memory_.layout().is_d_copied() ? Stage::kOut : Stage::kIssued;
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
                                memory_.StagedD(range()) + copied_));
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
  result.made_forms = form_bytes_ > 0 ? 1 : 0;
  ASSIGN_OR_RETURN(result.copy_in_ns, Between(in_begin_, in_end_));
  ASSIGN_OR_RETURN(result.compute_ns, Between(compute_begin_, compute_end_));
  ASSIGN_OR_RETURN(result.copy_out_ns, Between(out_begin_, out_end_));
  return absl::OkStatus();
}

}  // namespace gemmd
