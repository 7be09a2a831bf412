// SPDX-License-Identifier: Apache-2.0
#include "server/device/operands.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"
#include "server/system/resources.h"

namespace gemmd {

namespace {

// Copies that several threads do together, in parts: some whole copies, or a range of a long one.
class Copying {
 public:
  Copying(Copies copies, size_t max_part_bytes) : copies_(std::move(copies)) {
    for (size_t i = 0; i < copies_.size(); ++i) Add(i, max_part_bytes);
  }

  bool is_empty() const { return parts_.empty(); }
  bool was_aborted() const { return was_aborted_; }

  // Copies parts until none is left, or, once aborted, skips them. Returns whether the last part to
  // end was this thread's.
  template <typename IsAborted>
  bool Work(const IsAborted& is_aborted) {
    for (size_t i = next_++; i < parts_.size(); i = next_++) {
      if (is_aborted()) was_aborted_ = true;
      if (!was_aborted_) CopyPart(parts_[i]);
      if (++ended_ == parts_.size()) return true;
    }
    return false;
  }

 private:
  struct Part {
    size_t first = 0;
    size_t count = 1;
    size_t begin = 0;
    size_t bytes = 0;
    bool is_whole = true;
  };

  void Add(size_t index, size_t max_bytes) {
    const size_t bytes = copies_[index].bytes;
    if (bytes > max_bytes) {
      for (size_t at = 0; at < bytes; at += max_bytes) {
        const size_t part_bytes = std::min(max_bytes, bytes - at);
        parts_.push_back({.first = index, .begin = at, .bytes = part_bytes, .is_whole = false});
      }
      return;
    }
    const bool is_joined =
        !parts_.empty() && parts_.back().is_whole && parts_.back().bytes + bytes <= max_bytes;
    if (!is_joined) parts_.push_back({.first = index, .count = 0});
    ++parts_.back().count;
    parts_.back().bytes += bytes;
  }

  void CopyPart(const Part& part) const {
    if (!part.is_whole) {
      const CopiedBytes& copy = copies_[part.first];
      std::memcpy(copy.to + part.begin, copy.from + part.begin, part.bytes);
      return;
    }
    const auto copies = absl::MakeConstSpan(copies_).subspan(part.first, part.count);
    // Each keeper is told once of the pieces that follow one another.
    for (size_t first = 0, i = 0; i < copies.size(); ++i) {
      if (copies[i].bytes > 0) std::memcpy(copies[i].to, copies[i].from, copies[i].bytes);
      PieceKeeper* const keeper = copies[i].keeper;
      if (i + 1 < copies.size() && copies[i + 1].keeper == keeper) continue;
      if (keeper != nullptr) keeper->Release(copies[first].piece, i + 1 - first);
      first = i + 1;
    }
  }

  const Copies copies_;
  std::vector<Part> parts_;
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> ended_ = 0;
  std::atomic<bool> was_aborted_ = false;
};

// Starts as many threads as the system allows.
void StartThreads(int count, const std::function<void()>& work, std::vector<std::thread>& threads) {
  if (count > 0) threads.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {
      return;
    } catch (const std::bad_alloc&) {
      return;
    }
  }
}

}  // namespace

void CopyAll(const Copies& copies) {
  for (const CopiedBytes& copy : copies) {
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

int CopyThreads::DefaultThreads() { return std::clamp(UsableProcessors() / 4, 1, 4); }

void CopyThreads::Copy(Copies copies, const std::atomic<bool>& is_aborted, Work done) {
  constexpr size_t kMaxPartBytes = size_t{2} << 20;  // Takes half a millisecond.
  struct Shared {
    Copying copying;
    const std::atomic<bool>& is_aborted;
    Work done;
  };
  const std::shared_ptr<Shared> shared(
      new Shared{{std::move(copies), kMaxPartBytes}, is_aborted, std::move(done)});
  if (shared->copying.is_empty()) return Run(std::move(shared->done));
  for (int i = 0; i < pool_.size(); ++i) {
    Run([shared] {
      const auto was_aborted = [&] { return shared->is_aborted.load(std::memory_order_relaxed); };
      if (shared->copying.Work(was_aborted)) std::move(shared->done)();
    });
  }
}

bool CopyPieces(const Source& source, std::byte* to, int threads,
                absl::FunctionRef<bool()> is_aborted) {
  constexpr size_t kMaxPartBytes = size_t{4} << 20;  // Takes about a millisecond.
  Copies copies;
  copies.reserve(source.pieces.size());
  for (size_t piece = 0; piece < source.pieces.size(); ++piece) {
    const Piece& bytes = source.pieces[piece];
    copies.push_back({to, bytes.data(), bytes.size(), source.keeper, piece});
    to += bytes.size();
  }
  Copying copying(std::move(copies), kMaxPartBytes);
  const auto work = [&] { copying.Work(is_aborted); };
  std::vector<std::thread> others;
  if (source.bytes >= kParallelCopyBytes) StartThreads(threads - 1, work, others);
  work();
  for (std::thread& other : others) other.join();
  return !copying.was_aborted();
}

bool Gathering::IsSeen(const Source& source) const {
  return shared_ == nullptr || source.bytes < SharedMemory::kMinBytes ||
         shared_->OffsetOf(source.pieces.front().data());
}

absl::StatusOr<const std::byte*> Gathering::Take(const Source& source, size_t alignment,
                                                 AbortFlag abort) {
  if (source.block != 0 || !source.parts.empty())
    return absl::InternalError("job: got a block, want host memory");
  if (source.bytes == 0) return nullptr;
  const std::byte* const first = source.pieces.front().data();
  const bool is_aligned = reinterpret_cast<uintptr_t>(first) % alignment == 0;
  if (source.pieces.size() == 1 && is_aligned && IsSeen(source)) return first;
  // Long enough to be shared, so that a launch does not copy it again.
  const int64_t min_bytes = shared_ == nullptr ? 0 : SharedMemory::kMinBytes;
  std::optional<HeldBytes> copy = memory_.Take(std::max(source.bytes, min_bytes));
  if (!copy.has_value()) {
    return absl::ResourceExhaustedError(
        Concat("job: no memory to join ", source.bytes, " bytes of parts of a matrix"));
  }
  const auto is_aborted = [abort] { return IsSet(abort); };
  if (!CopyPieces(source, copy->bytes().data(), threads_, is_aborted)) return AbortedLaunch();
  copies_.push_back(*std::move(copy));
  return copies_.back().bytes().data();
}

absl::StatusOr<PerOperand<Piece>> Gathering::TakeAll(const Job& job, AbortFlag abort) {
  PerOperand<Piece> operands;
  for (const OperandRole role : kOperandRoles) {
    const Source& source = job[role];
    ASSIGN_OR_RETURN(const std::byte* const first,
                     Take(source, AlignmentOf(job.problem, role), abort));
    operands[role] = {first, static_cast<size_t>(source.bytes)};
  }
  return operands;
}

absl::Status CheckOperands(const Problem& problem, const std::byte* a, AbortFlag abort) {
  const MatrixLayout& layout = problem.a;
  if (!layout.is_sparse() || a == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const SparseLayout one,
                   SparseLayoutOf("a", layout.type, layout.rows, layout.columns));
  const int64_t batch = problem.batch;
  const int64_t matrices = layout.batch_stride_bytes == 0 ? std::min<int64_t>(1, batch) : batch;
  for (int64_t i = 0; i < matrices && !IsSet(abort); ++i) {
    const std::string place = matrices == 1 ? "a.data" : Concat("a.data: matrix ", i);
    RETURN_IF_ERROR(CheckCompressed(place, one, a + i * layout.batch_stride_bytes, abort));
  }
  return absl::OkStatus();
}

absl::Status CheckOperands(const Job& job, AbortFlag abort) {
  if (!job.problem.a.is_sparse()) return absl::OkStatus();
  if (job.a.block != 0 || !job.a.parts.empty()) return absl::OkStatus();
  Source source = job.a;
  source.keeper = nullptr;  // The pieces are copied again afterwards.
  WarmMemory memory(0);
  Gathering gathering(memory, /*threads=*/1);
  ASSIGN_OR_RETURN(const std::byte* const a, gathering.Take(source, 1, abort));
  return CheckOperands(job.problem, a, abort);
}

}  // namespace gemmd
