// SPDX-License-Identifier: Apache-2.0
#include "server/device/gather.h"

#include <optional>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/text.h"
#include "server/device/copy_pieces.h"

namespace gemmd {

absl::StatusOr<const std::byte*> Gathering::Take(const Source& source, size_t alignment,
                                                 AbortFlag abort) {
  if (source.block != 0 || !source.parts.empty())
    return absl::InternalError("job: a block is no memory of the host");
  if (source.bytes == 0) return nullptr;
  const std::byte* const first = source.pieces.front().data();
  const bool is_aligned = reinterpret_cast<uintptr_t>(first) % alignment == 0;
  if (source.pieces.size() == 1 && is_aligned) return first;
  std::optional<HeldBytes> copy = memory_.Take(source.bytes);
  if (!copy.has_value()) {
    return absl::ResourceExhaustedError(
        Concat("job: no memory to put ", source.bytes, " bytes of a matrix together"));
  }
  const auto is_aborted = [abort] { return IsSet(abort); };
  if (!CopyPieces(source, copy->bytes().data(), threads_, is_aborted)) return AbortedLaunch();
  copies_.push_back(*std::move(copy));
  return copies_.back().bytes().data();
}

absl::StatusOr<GemmArgs> ArgsOf(const Job& job, const Target& target,
                                absl::Span<std::byte> workspace, std::byte* d, AbortFlag abort,
                                Gathering& gathering) {
  // GemmArgs: matrices need no alignment.
  const auto matrix = [&](const Source& source) { return gathering.Take(source, 1, abort); };
  const auto factors = [&](const Source& source) -> absl::StatusOr<absl::Span<const float>> {
    ASSIGN_OR_RETURN(const std::byte* const first, gathering.Take(source, alignof(float), abort));
    return absl::MakeConstSpan(reinterpret_cast<const float*>(first),
                               static_cast<size_t>(source.bytes) / sizeof(float));
  };
  ASSIGN_OR_RETURN(const std::byte* const a, matrix(job.a));
  ASSIGN_OR_RETURN(const std::byte* const b, matrix(job.b));
  ASSIGN_OR_RETURN(const std::byte* const c, matrix(job.c));
  ASSIGN_OR_RETURN(const std::byte* const bias, matrix(job.bias));
  // Factors of blocks are bytes, too.
  const auto of_lines = [&](ScaleKind kind, const Source& source) {
    return factors(kind == ScaleKind::kBlocks ? Source() : source);
  };
  const auto of_blocks = [&](ScaleKind kind, const Source& source) {
    return matrix(kind == ScaleKind::kBlocks ? source : Source());
  };
  const Problem& problem = job.problem;
  ASSIGN_OR_RETURN(const absl::Span<const float> a_scale, of_lines(problem.a_scale, job.a_scale));
  ASSIGN_OR_RETURN(const absl::Span<const float> b_scale, of_lines(problem.b_scale, job.b_scale));
  ASSIGN_OR_RETURN(const std::byte* const a_factors, of_blocks(problem.a_scale, job.a_scale));
  ASSIGN_OR_RETURN(const std::byte* const b_factors, of_blocks(problem.b_scale, job.b_scale));
  return GemmArgs{.problem = job.problem,
                  .target = target,
                  .a = a,
                  .b = b,
                  .c = c,
                  .bias = bias,
                  .a_scale = a_scale,
                  .b_scale = b_scale,
                  .d = d,
                  .workspace = workspace,
                  .abort = abort,
                  .a_factors = a_factors,
                  .b_factors = b_factors};
}

}  // namespace gemmd
