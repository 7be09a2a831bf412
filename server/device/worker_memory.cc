// SPDX-License-Identifier: Apache-2.0
#include "server/device/worker_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/crossing/channel.h"
#include "server/crossing/protocol.h"

namespace gemmd {

void BlockLedger::SetCapacity(int64_t bytes) {
  MutexLock lock(&mutex_);
  capacity_bytes_ = bytes;
}

int64_t BlockLedger::capacity_bytes() const {
  MutexLock lock(&mutex_);
  return capacity_bytes_;
}

int64_t BlockLedger::used_bytes() const {
  MutexLock lock(&mutex_);
  return used_bytes_;
}

absl::StatusOr<DeviceBlock> BlockLedger::Add(int64_t bytes, bool is_scratch) {
  if (bytes <= 0) return absl::InvalidArgumentError(GotWant("bytes", Concat(bytes), "1 or more"));
  MutexLock lock(&mutex_);
  const int64_t left = capacity_bytes_ - used_bytes_;
  if (!is_scratch && (bytes > left || BlockBytes(bytes) > left)) {
    return absl::ResourceExhaustedError(
        GotWant("device memory", Concat("a block of ", bytes, " bytes"),
                Concat("at most ", left, ", which are free of ", capacity_bytes_,
                       " (four fifths of --gpu-memory-bytes)")));
  }
  blocks_[++last_] = {.bytes = bytes, .is_scratch = is_scratch};
  if (!is_scratch) used_bytes_ += BlockBytes(bytes);
  return last_;
}

bool BlockLedger::Remove(DeviceBlock block) {
  MutexLock lock(&mutex_);
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return false;
  if (!found->second.is_scratch) used_bytes_ -= BlockBytes(found->second.bytes);
  blocks_.erase(found);
  return true;
}

absl::Status BlockLedger::Check(DeviceBlock block, int64_t offset, int64_t bytes) const {
  MutexLock lock(&mutex_);
  if (block != 0 && block <= last_lost_) {
    return absl::FailedPreconditionError(
        "tensor lost: the worker that had it in the memory of its GPU was replaced");
  }
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) {
    return absl::InvalidArgumentError(GotWant("block", Concat(block), "one that is there"));
  }
  return CheckRange("block", offset, bytes, found->second.bytes);
}

void BlockLedger::Lose() {
  MutexLock lock(&mutex_);
  blocks_.clear();
  used_bytes_ = 0;
  last_lost_ = last_;
  ++generation_;
}

uint64_t BlockLedger::generation() const {
  MutexLock lock(&mutex_);
  return generation_;
}

namespace {

// A request without copies: to allocate or free a block.
class BlockErrand final : public Errand {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  BlockErrand(const MemoryRequest& request, Done done)
      : Errand(Kind::kMemory), request_(request), done_(std::move(done)) {
    if (request.action == MemoryAction::kFree) {
      uses.push_back({.block = request.block, .is_write = true});
    }
  }

  absl::Status Send(Channel& channel) const override {
    MemoryRequest request = request_;
    request.id = id;
    request.slot = slot;
    return SendRecord(channel, request);
  }
  void End(const absl::Status& status, const Times&) override { std::move(done_)(status); }

 private:
  const MemoryRequest request_;
  Done done_;
};

// Collects the ends of the chunks of one Write or Read.
class Transfer {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;
  Transfer(int64_t chunks, Done done) : left_(chunks), done_(std::move(done)) {}

  // One chunk has ended. Threads: any.
  void EndOne(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::Status end;
    {
      MutexLock lock(&mutex_);
      status_.Update(status);
      if (--left_ > 0) return;
      end = status_;
    }
    std::move(done_)(end);
  }

 private:
  Mutex mutex_;
  int64_t left_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  Done done_;
};

// A chunk: from `pieces` to the block, or from the block to `to`.
class CopyErrand final : public Errand {
 public:
  CopyErrand(const MemoryRequest& request, std::vector<Piece> pieces, absl::Span<std::byte> to,
             std::shared_ptr<Transfer> transfer)
      : Errand(Kind::kMemory),
        request_(request),
        pieces_(std::move(pieces)),
        to_(to),
        transfer_(std::move(transfer)) {
    const bool is_write = request.action == MemoryAction::kWrite;
    (is_write ? in_bytes : out_bytes) = request.bytes;
    predicted_ns = request.bytes / 5;  // At 5 GB/s, the rate of a slow link.
    uses.push_back({.block = request.block, .is_write = is_write});
    // A separate group for each Write and Read, because a block can be in several.
    group = reinterpret_cast<uintptr_t>(transfer_.get());
  }

  Copies CopiesIn() const override {
    Copies copies;
    std::byte* at = in.bytes().data();
    for (const Piece& piece : pieces_) {
      copies.push_back({.to = at, .from = piece.data(), .bytes = piece.size()});
      at += piece.size();
    }
    return copies;
  }
  absl::Status Send(Channel& channel) const override {
    MemoryRequest request = request_;
    request.id = id;
    request.slot = slot;
    request.staged = pieces_.empty() ? out.offset() : in.offset();
    return SendRecord(channel, request);
  }
  absl::Status PlaceResult(Copies& copies) override {
    if (!to_.empty()) {
      copies.push_back({.to = to_.data(), .from = out.bytes().data(), .bytes = to_.size()});
    }
    return absl::OkStatus();
  }
  void End(const absl::Status& status, const Times&) override { transfer_->EndOne(status); }

 private:
  const MemoryRequest request_;
  const std::vector<Piece> pieces_;
  const absl::Span<std::byte> to_;
  const std::shared_ptr<Transfer> transfer_;
};

// The errands of a Write or Read of the range, in chunks of at most `chunk_bytes`.
std::vector<std::unique_ptr<Errand>> WriteErrands(DeviceBlock block, int64_t offset,
                                                  std::vector<Piece> pieces, int64_t chunk_bytes,
                                                  Transfer::Done done) {
  int64_t left = 0;
  for (const Piece& piece : pieces) left += static_cast<int64_t>(piece.size());
  auto transfer = std::make_shared<Transfer>((left - 1) / chunk_bytes + 1, std::move(done));
  std::vector<std::unique_ptr<Errand>> errands;
  while (left > 0) {
    MemoryRequest request;
    request.action = MemoryAction::kWrite;
    request.block = block;
    request.offset = offset;
    request.bytes = std::min(left, chunk_bytes);
    offset += request.bytes;
    left -= request.bytes;
    errands.push_back(std::make_unique<CopyErrand>(request, TakeFront(pieces, request.bytes),
                                                   absl::Span<std::byte>(), transfer));
  }
  return errands;
}

std::vector<std::unique_ptr<Errand>> ReadErrands(DeviceBlock block, int64_t offset,
                                                 absl::Span<std::byte> to, int64_t chunk_bytes,
                                                 Transfer::Done done) {
  const auto all = static_cast<int64_t>(to.size());
  auto transfer = std::make_shared<Transfer>((all - 1) / chunk_bytes + 1, std::move(done));
  std::vector<std::unique_ptr<Errand>> errands;
  for (int64_t at = 0; at < all; at += chunk_bytes) {
    MemoryRequest request;
    request.action = MemoryAction::kRead;
    request.block = block;
    request.offset = offset + at;
    request.bytes = std::min(chunk_bytes, all - at);
    const absl::Span<std::byte> part =
        to.subspan(static_cast<size_t>(at), static_cast<size_t>(request.bytes));
    errands.push_back(std::make_unique<CopyErrand>(request, std::vector<Piece>(), part, transfer));
  }
  return errands;
}

// A compression of some lines as a request to a worker.
class CompressErrand final : public Errand {
 public:
  // `bytes` are those of the task.
  CompressErrand(const CompressTask& task, const CompressBytes& bytes,
                 DeviceMemory::CompressDone done)
      : Errand(Kind::kMemory), task_(task), done_(std::move(done)) {
    out_bytes = kJobAlignment;
    // At 200 GB/s read, because magnitudes are compared in f64.
    predicted_ns = (task.end_line - task.first_line) * task.dense.line_stride_bytes() / 200;
    uses.push_back({.block = task.result_block, .is_write = true});
    uses.push_back({.block = task.dense_block});
    const bool is_other_mask = bytes.mask > 0 && task.mask_block != task.dense_block;
    if (is_other_mask) uses.push_back({.block = task.mask_block});
  }

  absl::Status Send(Channel& channel) const override {
    CompressRequest request;
    request.id = id;
    request.slot = slot;
    request.task = task_;
    request.predicted_ns = predicted_ns;
    request.staged = out.offset();
    return SendRecord(channel, request);
  }
  absl::Span<std::byte> written() const override { return out.bytes().first(sizeof(bad_)); }
  absl::Status PlaceResult(Copies&) override {
    std::memcpy(&bad_, written().data(), sizeof(bad_));
    // The cleared value was not overwritten.
    if (bad_ == 0) return absl::InternalError("compress: the worker did not report a result");
    return absl::OkStatus();
  }
  void End(const absl::Status& status, const Times&) override {
    std::move(done_)(status.ok() ? absl::StatusOr<BadGroup>(bad_) : status);
  }

 private:
  const CompressTask task_;
  DeviceMemory::CompressDone done_;
  BadGroup bad_ = kNoBadGroup;
};

// A recomputation as a request to a worker.
class RecomputeErrand final : public Errand {
 public:
  RecomputeErrand(DeviceMemory::Recomputation order, DeviceMemory::RecomputeDone done)
      : Errand(Kind::kMemory), order_(std::move(order)), done_(std::move(done)) {
    const absl::StatusOr<RecomputeLayout> layout = LayOutRecompute(order_.task);
    if (!layout.ok()) verdict = layout.status();
    if (!layout.ok()) return;
    layout_ = *layout;
    if (absl::Status wrong = CheckSizes(); !wrong.ok()) verdict = std::move(wrong);
    in_bytes = layout_.in_bytes();
    out_bytes = layout_.out_bytes();
    predicted_ns = order_.predicted_ns;
    if (layout_.mark.bytes > 0) marked_bytes = static_cast<size_t>(layout_.mark.bytes);
    for (const OperandRole role : kOperandRoles) AddUse(order_.task.places[role]);
    AddUse(order_.task.places.d);
  }

  Copies CopiesIn() const override {
    Copies copies;
    std::byte* const to = in.bytes().data();
    copies.push_back({.to = to,
                      .from = reinterpret_cast<const std::byte*>(order_.numbers.data()),
                      .bytes = order_.numbers.size() * sizeof(int64_t)});
    for (const OperandRole role : kOperandRoles) {
      const std::vector<std::byte>& operand = order_.operands[role];
      if (operand.empty()) continue;
      copies.push_back({.to = to + layout_.lists + layout_.staged[role].offset,
                        .from = operand.data(),
                        .bytes = operand.size()});
    }
    return copies;
  }
  absl::Status Send(Channel& channel) const override {
    RecomputeRequest request;
    request.id = id;
    request.slot = slot;
    request.kernel = static_cast<uint32_t>(order_.kernel->position);
    request.predicted_ns = predicted_ns;
    request.staged_in = in.offset();
    request.staged_out = out.offset();
    request.task = order_.task;
    return SendRecord(channel, request);
  }
  absl::Span<std::byte> staged_mark() const override {
    return in.bytes().subspan(static_cast<size_t>(layout_.mark_offset()), ResultStamps::kBytes);
  }
  absl::Status PlaceResult(Copies&) override {
    return OrNoMemory("recompute: no memory for the elements", [this] {
      const auto bytes = static_cast<size_t>(layout_.operands.d.bytes);
      const std::byte* const computed = out.bytes().data();
      result_.computed.assign(computed, computed + bytes);
      if (layout_.found == 0) return absl::OkStatus();
      const std::byte* const found = computed + (layout_.found - layout_.computed());
      result_.found.assign(found, found + bytes);
      return absl::OkStatus();
    });
  }
  void End(const absl::Status& status, const Times&) override {
    std::move(done_)(status.ok() ? absl::StatusOr<DeviceMemory::Recomputed>(std::move(result_))
                                 : status);
  }

 private:
  // What is too short would leave bytes of an earlier job in its place.
  absl::Status CheckSizes() const {
    bool are_right = order_.numbers.size() == size_t(order_.task.rows + order_.task.columns);
    for (const OperandRole role : kOperandRoles) {
      const bool is_staged = order_.task.places[role].block == 0;
      const int64_t want = is_staged ? layout_.staged[role].bytes : 0;
      are_right = are_right && order_.operands[role].size() == size_t(want);
    }
    return are_right ? absl::OkStatus()
                     : absl::InternalError("recompute: got operands of another size");
  }
  void AddUse(const JobPlace& place) {
    const bool is_known = std::any_of(
        uses.begin(), uses.end(), [&](const BlockUse& use) { return use.block == place.block; });
    if (place.block != 0 && !is_known) uses.push_back({.block = place.block});
  }

  const DeviceMemory::Recomputation order_;
  DeviceMemory::RecomputeDone done_;
  RecomputeLayout layout_;
  DeviceMemory::Recomputed result_;
};

// A pseudo block that keeps allocations and frees in order; no real block has this number.
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
  give_(WriteErrands(block, offset, std::move(pieces), chunk_bytes_,
                     WithLoss(block, std::move(done))));
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

void WorkerMemory::Recompute(Recomputation order, RecomputeDone done) {
  const RecomputeTask& task = order.task;
  absl::Status checked;
  for (const OperandRole role : kOperandRoles) checked.Update(CheckPlace(task.places[role]));
  checked.Update(CheckPlace(task.places.d));
  auto errand = std::make_unique<RecomputeErrand>(std::move(order), std::move(done));
  if (!checked.ok()) errand->verdict = std::move(checked);
  give_(One(std::move(errand)));
}

// The worker checks the ranges.
absl::Status WorkerMemory::CheckPlace(const JobPlace& place) const {
  return place.block == 0 ? absl::OkStatus() : ledger_.Check(place.block, place.offset, 0);
}

}  // namespace gemmd
