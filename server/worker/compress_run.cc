// SPDX-License-Identifier: Apache-2.0
#include "server/worker/compress_run.h"

#include <vector>

#include "kernels/status_macros.h"

namespace gemmd {
namespace {

std::vector<BlockUse> UsesOf(const CompressTask& task) {
  JobPlaces places;
  places.a.block = task.dense_block;
  places.b.block = task.mask_block;
  places.d.block = task.result_block;
  return UsesOf(places);
}

}  // namespace

CompressRun::CompressRun(RunContext& context, const CompressRequest& request)
    : Run(context, request.id, request.slot, UsesOf(request.task)), request_(request) {}

CompressRun::~CompressRun() { context().arena.GiveBack(bad_); }

absl::StatusOr<bool> CompressRun::TakeMemory() {
  RunContext& context = this->context();
  if (bad_.memory != nullptr) return true;
  if (context.is_memory_short) return false;
  context.arena.SetLimit(context.free_bytes() + context.arena.bytes());
  absl::StatusOr<DeviceArena::Range> range = context.arena.Reserve(kJobAlignment);
  const bool may_wait = absl::IsUnavailable(range.status()) ||
                        (absl::IsResourceExhausted(range.status()) && !context.is_first);
  if (may_wait) {
    context.is_memory_short = true;
    return false;
  }
  RETURN_IF_ERROR(range.status());
  bad_ = *range;
  return true;
}

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
  ASSIGN_OR_RETURN(const bool has_memory, TakeMemory());
  const bool has_turn = context.computing == 0 && HasTurn() && HasRoom(Lane::kCompute);
  if (!has_memory || !has_turn) return absl::OkStatus();
  Start();
  RETURN_IF_ERROR(context.blocks.Follow(context.lanes, Lane::kCompute, uses()));
  ASSIGN_OR_RETURN(begin_, Mark(Lane::kCompute, 0));
  RETURN_IF_ERROR(context.runtime.Compress(ViewOf(task, dense, mask, result),
                                           reinterpret_cast<BadGroup*>(bad_.memory)));
  ASSIGN_OR_RETURN(compressed_, Mark(Lane::kCompute, request_.predicted_ns));
  const auto staged =
      context.staging.matrices().subspan(static_cast<size_t>(request_.staged), sizeof(BadGroup));
  RETURN_IF_ERROR(context.runtime.CopyOut(Lane::kCompute, staged, bad_.memory));
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

}  // namespace gemmd
