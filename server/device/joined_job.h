// SPDX-License-Identifier: Apache-2.0
//
// Several jobs as one.
//
//   Batched: jobs of one shape, kernel and epilogue become one batch of matrices.
//   Stacked: jobs of one B, which stays with the device or its memory, become one job whose A has
//   the rows of them all, one below the other.
//
// The bits of every D are those that it would have alone: only kernels whose bits of a row depend
// neither on m nor on the batch join. All operands are read before any D is written.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/device/held_bytes.h"
#include "server/device/job.h"

namespace gemmd {

// Whether both are the same bytes in the same place.
bool IsSamePlace(const Source& x, const Source& y);

// Borrows what its members borrow.
class JoinedJob {
 public:
  // Takes at least one job, and gives the whole this number; all have the same key of this kind
  // (server/scheduling/joining.h), and parts of D that are not the same share no byte. Errors:
  // Unimplemented where the kernel does not run the whole, or matrices of one operand lie on the
  // host and on the device; ResourceExhausted where its workspace would be too large.
  static absl::StatusOr<std::unique_ptr<JoinedJob>> Of(Joining joining, JobId id,
                                                       std::vector<const Job*> members);

  // Lives as long as this.
  const Job& job() const { return job_; }

  // Has the whole run by another kernel, which gives the same bits. Errors: as Of; nothing is
  // changed then.
  absl::Status SetKernel(const Kernel& kernel);

  // Each member's part of the D that the device gave, in their order, in memory of its own: who
  // reads his answer slowly keeps no other's. Errors: ResourceExhausted where there is no memory.
  std::vector<absl::StatusOr<HeldBytes>> Split(absl::Span<const std::byte> d) const;

 private:
  explicit JoinedJob(std::vector<const Job*> members) : members_(std::move(members)) {}
  absl::Status Join();
  absl::Status Stack();
  absl::Status Batch();
  absl::Status Together(Source Job::*of, MatrixLayout& layout);
  absl::Status Concatenate(Source Job::*of);
  void Scatter();

  const std::vector<const Job*> members_;
  SourcePieces pieces_;
  std::vector<std::vector<BlockPart>> block_parts_;  // Where operands in blocks lie.
  std::vector<DestinationPart> d_parts_;
  Job job_;
};

}  // namespace gemmd
