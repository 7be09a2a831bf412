// SPDX-License-Identifier: Apache-2.0
#include "server/worker/memory_run.h"

#include <algorithm>
#include <vector>

#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd {
namespace {

// A block that is allocated is not there yet, and nobody else can know its number.
std::vector<BlockUse> UsesOf(const MemoryRequest& request) {
  if (request.action == MemoryAction::kAllocate) return {};
  return {{.block = request.block, .is_write = request.action != MemoryAction::kRead}};
}

}  // namespace

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

// OK where there is room, Unavailable where there may be once earlier requests are done.
absl::Status MemoryRun::CheckRoom() {
  RunContext& context = this->context();
  const int64_t bytes = request_.bytes;
  const bool is_tensor = request_.is_scratch == 0;
  const int64_t tensors_left = context.tensor_limit_bytes - context.blocks.tensor_bytes();
  if (bytes > context.free_bytes()) context.arena.FreeIdle();
  if (bytes <= context.free_bytes() && (!is_tensor || bytes <= tensors_left)) {
    return absl::OkStatus();
  }
  if (!context.is_first) return absl::UnavailableError("device memory: earlier requests have it");
  return absl::ResourceExhaustedError(GotWant(
      "device memory", Concat("a block of ", bytes, " bytes"),
      Concat("at most ",
             is_tensor ? std::min(tensors_left, context.free_bytes()) : context.free_bytes(),
             ", which are free")));
}

absl::Status MemoryRun::Allocate() {
  RunContext& context = this->context();
  const absl::Status room = CheckRoom();
  if (absl::IsUnavailable(room)) return absl::OkStatus();
  RETURN_IF_ERROR(room);
  absl::StatusOr<std::byte*> memory =
      context.blocks.Add(request_.block, request_.bytes, request_.is_scratch != 0);
  if (absl::IsResourceExhausted(memory.status()) && !context.is_first) return absl::OkStatus();
  RETURN_IF_ERROR(memory.status());
  // Nothing of whoever had the memory before is left to the next one.
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

}  // namespace gemmd
