// SPDX-License-Identifier: Apache-2.0
#include "server/device/operands.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
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

namespace gemmd {

namespace {

// Copying this much takes about a millisecond.
constexpr size_t kMaxInPart = size_t{4} << 20;

// The unit of a thread's work: a range of one long piece, or several whole pieces.
struct Part {
  size_t first = 0;  // Piece.
  size_t count = 0;
  size_t begin = 0;  // Offset in the piece, if not whole.
  size_t bytes = 0;
  size_t offset = 0;  // Offset in the destination.
  bool is_whole = true;
};

std::vector<Part> PartsOf(absl::Span<const Piece> pieces) {
  std::vector<Part> parts;
  size_t offset = 0;
  const auto add = [&](Part part) {
    part.offset = offset;
    offset += part.bytes;
    parts.push_back(part);
  };
  for (size_t i = 0; i < pieces.size();) {
    if (pieces[i].size() > kMaxInPart) {
      for (size_t begin = 0; begin < pieces[i].size(); begin += kMaxInPart) {
        add({.first = i,
             .count = 1,
             .begin = begin,
             .bytes = std::min(kMaxInPart, pieces[i].size() - begin),
             .is_whole = false});
      }
      ++i;
      continue;
    }
    Part part = {.first = i};
    for (; i < pieces.size() && part.bytes + pieces[i].size() <= kMaxInPart; ++i) {
      part.bytes += pieces[i].size();
      ++part.count;
    }
    add(part);
  }
  return parts;
}

void CopyPart(const Source& source, const Part& part, std::byte* to) {
  to += part.offset;
  if (!part.is_whole) {
    std::memcpy(to, source.pieces[part.first].data() + part.begin, part.bytes);
    return;
  }
  for (const Piece& piece : source.pieces.subspan(part.first, part.count)) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  if (source.keeper != nullptr) source.keeper->LetGo(part.first, part.count);
}

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

bool CopyPieces(const Source& source, std::byte* to, int threads,
                absl::FunctionRef<bool()> is_aborted) {
  const std::vector<Part> parts = PartsOf(source.pieces);
  std::atomic<size_t> next = 0;
  std::atomic<bool> is_ended = false;
  const auto work = [&] {
    for (size_t i = next++; i < parts.size(); i = next++) {
      if (is_aborted()) is_ended = true;
      if (is_ended) return;
      CopyPart(source, parts[i], to);
    }
  };
  std::vector<std::thread> others;
  if (source.bytes >= kParallelCopyBytes) StartThreads(threads - 1, work, others);
  work();
  for (std::thread& other : others) other.join();
  return !is_ended;
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
  std::optional<HeldBytes> copy = memory_.Take(source.bytes);
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

absl::StatusOr<GemmArgs> ArgsOf(const Job& job, const Target& target,
                                absl::Span<std::byte> workspace, std::byte* d, AbortFlag abort,
                                Gathering& gathering) {
  ASSIGN_OR_RETURN(const PerOperand<Piece> operands, gathering.TakeAll(job, abort));
  GemmArgs args = ArgsAt(job.problem, target, operands, d, workspace);
  args.abort = abort;
  return args;
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
