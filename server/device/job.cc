// SPDX-License-Identifier: Apache-2.0
#include "server/device/job.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "kernels/kernel.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd {

std::vector<Piece> TakeFront(std::vector<Piece>& pieces, int64_t bytes) {
  std::vector<Piece> front;
  auto missing = static_cast<size_t>(bytes);
  size_t used = 0;
  while (missing > 0 && used < pieces.size()) {
    Piece& piece = pieces[used];
    const Piece part = piece.first(std::min(piece.size(), missing));
    if (!part.empty()) front.push_back(part);
    missing -= part.size();
    piece.remove_prefix(part.size());
    if (piece.empty()) ++used;
  }
  pieces.erase(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(used));
  return front;
}

Source SourcePieces::Add(PieceList pieces, PieceKeeper* keeper) {
  assert(used_ < kMax);
  PieceList& list = lists_[used_++];
  list = std::move(pieces);
  Source source = {.pieces = list, .keeper = keeper};
  for (const Piece& piece : list) source.bytes += static_cast<int64_t>(piece.size());
  return source;
}

bool IsSamePlace(const Source& x, const Source& y) {
  if (x.block != y.block || x.offset != y.offset || x.bytes != y.bytes) return false;
  if (x.block != 0) return true;
  return x.pieces.size() == 1 && y.pieces.size() == 1 &&
         x.pieces.front().data() == y.pieces.front().data();
}

absl::StatusOr<HeldBytes> CopyOfPart(absl::Span<const std::byte> part) {
  const auto bytes = static_cast<int64_t>(part.size());
  std::optional<HeldBytes> copy = HeldBytes::Zeros(bytes);
  if (!copy) {
    return absl::ResourceExhaustedError(Concat("d: no memory for ", bytes, " bytes of a result"));
  }
  std::memcpy(copy->bytes().data(), part.data(), part.size());
  return *std::move(copy);
}

absl::StatusOr<std::unique_ptr<JoinedJob>> JoinedJob::Of(Joining joining, JobId id,
                                                         std::vector<const Job*> members) {
  std::unique_ptr<JoinedJob> joined(new JoinedJob(std::move(members)));
  joined->job_ = *joined->members_.front();
  joined->job_.id = id;
  joined->job_.joining = joining;
  RETURN_IF_ERROR(joined->Join());
  return joined;
}

std::unique_ptr<JoinedJob> JoinedJob::Of(const Job& whole, std::vector<const Job*> members) {
  std::unique_ptr<JoinedJob> joined(new JoinedJob(std::move(members)));
  joined->job_ = whole;
  joined->job_.members = joined->members_;
  return joined;
}

absl::Status JoinedJob::Join() {
  job_.joining == Joining::kStacked ? Stack() : Batch();
  RETURN_IF_ERROR(Validate(job_.problem));
  RETURN_IF_ERROR(SetKernel(*job_.kernel));
  job_.d_bytes = BytesWritten(job_.problem);
  job_.members = members_;
  return absl::OkStatus();
}

absl::Status JoinedJob::Gather() {
  for (const OperandRole role : {OperandRole::kA, OperandRole::kB, OperandRole::kC}) {
    job_[role] = (*members_.front())[role];
    const bool is_there = role != OperandRole::kC || job_.problem.has_c();
    if (is_there && !IsOne(role)) RETURN_IF_ERROR(Concatenate(role));
  }
  // Those of a resident B are where it is.
  if (job_.problem.blocks_of_b() != nullptr) job_.b_scale = members_.front()->b_scale;
  job_.d = members_.front()->d;
  if (job_.d.is_given()) Scatter();
  return absl::OkStatus();
}

absl::Status JoinedJob::SetKernel(const Kernel& kernel) {
  RETURN_IF_ERROR(kernel.supports(job_.problem));
  ASSIGN_OR_RETURN(job_.workspace_bytes, kernel.workspace_bytes(job_.problem));
  job_.kernel = &kernel;
  return absl::OkStatus();
}

void JoinedJob::Stack() {
  Problem& problem = job_.problem;
  problem.m = 0;
  for (const Job* const member : members_) problem.m += member->problem.m;
  for (MatrixLayout* const layout : {&problem.a, &problem.c, &problem.d}) {
    layout->rows = problem.m;
    layout->batch_stride_bytes = problem.m * layout->line_stride_bytes();
  }
  // Operands assembled for one launch are not resident.
  problem.a_stays = problem.a_factors_stay = false;
}

void JoinedJob::Batch() {
  Problem& problem = job_.problem;
  problem.batch = 0;
  for (const Job* const member : members_) problem.batch += member->problem.batch;
  ShareIfOne(OperandRole::kA);
  ShareIfOne(OperandRole::kB);
  problem.a_stays = problem.a_stays && problem.a.batch_stride_bytes == 0;
  problem.b_stays = problem.b_stays && problem.b.batch_stride_bytes == 0;
  if (problem.has_c()) ShareIfOne(OperandRole::kC);
}

// If all members have the same matrix, the operand is that one matrix.
void JoinedJob::ShareIfOne(OperandRole role) {
  MatrixLayout& layout = LayoutOf(job_.problem, role);
  const Source& first = (*members_.front())[role];
  const bool is_one = std::all_of(members_.begin(), members_.end(), [&](const Job* member) {
    const bool is_one_matrix = member->problem.batch == 1 || layout.batch_stride_bytes == 0;
    return is_one_matrix && IsSamePlace((*member)[role], first);
  });
  if (is_one) layout.batch_stride_bytes = 0;
}

// Whether all members share the operand.
bool JoinedJob::IsOne(OperandRole role) const {
  if (job_.joining == Joining::kStacked) return role == OperandRole::kB;
  return LayoutOf(job_.problem, role).batch_stride_bytes == 0;
}

// Concatenates the pieces or blocks of all members, in order.
absl::Status JoinedJob::Concatenate(OperandRole role) {
  const bool is_in_blocks = (*members_.front())[role].block != 0;
  PieceList pieces;
  std::vector<PlacedPart> parts;
  if (is_in_blocks) {
    parts.reserve(members_.size());
  } else {
    pieces.reserve(members_.size());
  }
  Source whole;
  for (const Job* const member : members_) {
    const Source& own = (*member)[role];
    if ((own.block != 0) != is_in_blocks) {
      return absl::UnimplementedError("join: matrices of one operand are in different places");
    }
    if (is_in_blocks) {
      parts.push_back({.block = own.block, .offset = own.offset, .bytes = own.bytes});
    } else {
      pieces.insert(pieces.end(), own.pieces.begin(), own.pieces.end());
    }
    whole.bytes += own.bytes;
  }
  if (is_in_blocks) {
    whole.parts = block_parts_.emplace_back(std::move(parts));
  } else {
    whole = pieces_.Add(std::move(pieces));
  }
  job_[role] = whole;
  return absl::OkStatus();
}

// If several members overwrite the same bytes, the last one's remain, as if it had run last.
void JoinedJob::Scatter() {
  d_parts_.resize(members_.size());
  absl::flat_hash_set<std::pair<DeviceBlock, int64_t>> in_blocks;
  absl::flat_hash_set<const std::byte*> in_memory;
  for (size_t i = members_.size(); i-- > 0;) {
    const Destination& d = members_[i]->d;
    const bool is_last = d.block != 0 ? in_blocks.emplace(d.block, d.offset).second
                                      : in_memory.insert(d.memory).second;
    d_parts_[i].bytes = members_[i]->d_bytes;
    if (!is_last) continue;
    d_parts_[i].block = d.block;
    d_parts_[i].offset = d.offset;
    d_parts_[i].memory = d.memory;
  }
  job_.d = {.parts = d_parts_};
}

}  // namespace gemmd
