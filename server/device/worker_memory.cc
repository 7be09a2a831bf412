// SPDX-License-Identifier: Apache-2.0
#include "server/device/worker_memory.h"

#include <utility>

#include "kernels/status_macros.h"
#include "server/crossing/protocol.h"
#include "server/device/compress_errand.h"
#include "server/device/memory_errand.h"

namespace gemmd {
namespace {

// What takes memory and what gives it back keep their order: no block has this number.
constexpr BlockUse kAnyMemory = {.block = 0, .is_write = true};

std::vector<std::unique_ptr<Errand>> One(std::unique_ptr<Errand> errand) {
  std::vector<std::unique_ptr<Errand>> errands;
  errands.push_back(std::move(errand));
  return errands;
}

}  // namespace

void WorkerMemory::EndWith(const absl::Status& status, Done done) {
  auto errand = std::make_unique<BlockErrand>(MemoryRequest(), std::move(done));
  errand->verdict = status;
  give_(One(std::move(errand)));
}

WorkerMemory::Done WorkerMemory::WithLoss(DeviceBlock block, Done done) {
  return [this, block, done = std::move(done)](const absl::Status& status) mutable {
    const absl::Status now = ledger_.Check(block, 0, 0);
    std::move(done)(!status.ok() && absl::IsFailedPrecondition(now) ? now : status);
  };
}

void WorkerMemory::AllocateAs(bool is_scratch, int64_t bytes, AllocateDone done) {
  const absl::StatusOr<DeviceBlock> block = ledger_.Add(bytes, is_scratch);
  auto end = [this, block, done = std::move(done)](const absl::Status& status) mutable {
    if (block.ok() && !status.ok()) ledger_.Remove(*block);
    if (!status.ok()) return std::move(done)(status);
    std::move(done)(block);
  };
  if (!block.ok()) return EndWith(block.status(), std::move(end));
  MemoryRequest request;
  request.action = MemoryAction::kAllocate;
  request.block = *block;
  request.is_scratch = is_scratch ? 1 : 0;
  request.bytes = BlockBytes(bytes);
  auto errand = std::make_unique<BlockErrand>(request, std::move(end));
  errand->uses.push_back(kAnyMemory);
  give_(One(std::move(errand)));
}

void WorkerMemory::Free(DeviceBlock block) {
  if (!ledger_.Remove(block)) return;
  MemoryRequest request;
  request.action = MemoryAction::kFree;
  request.block = block;
  auto errand = std::make_unique<BlockErrand>(request, [](const absl::Status&) {});
  errand->uses.push_back(kAnyMemory);
  give_(One(std::move(errand)));
}

void WorkerMemory::Write(DeviceBlock block, int64_t offset,
                         std::vector<absl::Span<const std::byte>> pieces, Done done) {
  int64_t bytes = 0;
  for (const absl::Span<const std::byte>& piece : pieces) {
    bytes += static_cast<int64_t>(piece.size());
  }
  const absl::Status checked = ledger_.Check(block, offset, bytes);
  if (!checked.ok() || bytes == 0) return EndWith(checked, std::move(done));
  give_(WriteErrands(block, offset, pieces, chunk_bytes_, WithLoss(block, std::move(done))));
}

void WorkerMemory::Read(DeviceBlock block, int64_t offset, absl::Span<std::byte> to, Done done) {
  const absl::Status checked = ledger_.Check(block, offset, static_cast<int64_t>(to.size()));
  if (!checked.ok() || to.empty()) return EndWith(checked, std::move(done));
  give_(ReadErrands(block, offset, to, chunk_bytes_, WithLoss(block, std::move(done))));
}

absl::Status WorkerMemory::Check(const CompressTask& task, const CompressBytes& bytes) const {
  RETURN_IF_ERROR(ledger_.Check(task.dense_block, 0, bytes.dense));
  RETURN_IF_ERROR(ledger_.Check(task.result_block, 0, bytes.result));
  return task.mask_block == 0 ? absl::OkStatus() : ledger_.Check(task.mask_block, 0, bytes.mask);
}

void WorkerMemory::Compress(const CompressTask& task, CompressDone done) {
  const absl::StatusOr<CompressBytes> bytes = BytesOf(task);
  absl::Status checked = bytes.ok() ? Check(task, *bytes) : bytes.status();
  auto end = [this, task, bytes, done = std::move(done)](absl::StatusOr<BadGroup> bad) mutable {
    const absl::Status now = bytes.ok() ? Check(task, *bytes) : bytes.status();
    const bool is_lost = !bad.ok() && absl::IsFailedPrecondition(now);
    std::move(done)(is_lost ? absl::StatusOr<BadGroup>(now) : std::move(bad));
  };
  auto errand =
      std::make_unique<CompressErrand>(task, bytes.value_or(CompressBytes()), std::move(end));
  if (!checked.ok()) errand->verdict = std::move(checked);
  give_(One(std::move(errand)));
}

}  // namespace gemmd
