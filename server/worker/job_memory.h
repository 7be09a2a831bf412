// SPDX-License-Identifier: Apache-2.0
//
// Where the matrices of a job lie in the memory of a GPU: staged ones in a range of the arena,
// those of blocks there, or as copies in the range where a kernel cannot read or write them as they
// lie, or where they are in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/crossing/job_layout.h"
#include "server/crossing/protocol.h"
#include "server/worker/block_table.h"
#include "server/worker/device_arena.h"
#include "server/worker/gpu_runtime.h"

namespace gemmd {

class JobMemory {
 public:
  // Works out what the job needs; nothing is taken.
  // `parts` are those of the request. Errors: FailedPrecondition and InvalidArgument for places in
  // blocks; ResourceExhausted.
  static absl::StatusOr<JobMemory> Of(const JobRequest& request, absl::Span<const PlacedPart> parts,
                                      int64_t workspace_bytes, const BlockTable& blocks);

  // What the range of the arena takes. It begins as the staged matrices do in their layout.
  int64_t bytes() const { return bytes_; }
  // What follows the staged inputs in the range and is to be zeros before the launch: D, and the
  // workspace.
  int64_t cleared_bytes() const { return copies_begin_ - layout_.input_bytes; }
  const JobLayout& layout() const { return layout_; }

  // With the range at this address. Borrows the problem of the request.
  GemmArgs ArgsIn(std::byte* range, const Problem& problem, const Target& target) const;
  // Before the launch: operands that do not lie where a kernel reads them.
  std::vector<MemoryLines> CopiesIn(std::byte* range) const;
  // After it: D, to where it belongs.
  std::vector<MemoryLines> CopiesOut(std::byte* range, const Problem& problem) const;
  // Copies of parts, in their order: those of the operands into the range, before the launch, and
  // those of D out of it, after it. They are to be where the list of parts is in the range.
  std::vector<CopiedPart> PartCopies(std::byte* range) const;
  int64_t operand_parts() const { return static_cast<int64_t>(parts_.size()) - d_parts_; }
  int64_t d_parts() const { return d_parts_; }
  int64_t most_part_bytes() const { return most_part_bytes_; }

  // The staged D in the range.
  std::byte* StagedD(std::byte* range) const { return range + layout_.input_bytes; }

  const JobMark& mark() const { return mark_; }
  // What of the mark comes with the staged inputs: a staged D follows those in the range.
  int64_t staged_mark_bytes() const { return layout_.is_d_staged() ? mark_.bytes : 0; }
  // The marked bytes where the kernel writes them, and where they then stay. Where D bears no mark,
  // those that stay are kMarkBytes zeros.
  std::byte* MarkedIn(std::byte* range) const { return At(matrices_[kD], range) + mark_.offset; }
  std::byte* KeptIn(std::byte* range) const;

 private:
  // One matrix: at an address, or at an offset of the range, into which it may have to be copied.
  struct Matrix {
    std::byte* in_block = nullptr;
    int64_t in_range = -1;
    int64_t bytes = 0;
  };
  static constexpr size_t kD = 6;  // As RangesOf counts them.

  static std::byte* At(const Matrix& matrix, std::byte* range) {
    if (matrix.bytes == 0) return nullptr;
    return matrix.in_range >= 0 ? range + matrix.in_range : matrix.in_block;
  }
  struct Part {
    std::byte* in_block = nullptr;  // Null: nobody wants it.
    int64_t in_range = 0;
    int64_t bytes = 0;
  };

  absl::Status Place(const JobRequest& request, const BlockTable& blocks);
  absl::Status PlaceParts(const JobRequest& request, absl::Span<const PlacedPart> parts,
                          const BlockTable& blocks);

  JobLayout layout_;
  std::array<Matrix, 7> matrices_;
  JobMark mark_;
  int64_t zeros_begin_ = 0;
  int64_t workspace_begin_ = 0;
  int64_t workspace_bytes_ = 0;
  int64_t copies_begin_ = 0;
  int64_t bytes_ = 0;
  std::vector<Part> parts_;
  int64_t d_parts_ = 0;
  int64_t most_part_bytes_ = 0;
};

}  // namespace gemmd
