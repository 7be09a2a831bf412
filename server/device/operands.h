// SPDX-License-Identifier: Apache-2.0
//
// Prepares a job's matrices for host kernels: assembles each in one piece, and checks operand
// contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/matrix/abort.h"
#include "server/device/device.h"
#include "server/device/held_bytes.h"
#include "server/device/job.h"

namespace gemmd {

// From this size on, several threads copy: one does not saturate the memory bandwidth, but starting
// another costs as much as copying some hundred kilobytes.
inline constexpr int64_t kParallelCopyBytes = int64_t{8} << 20;

// Copies the pieces consecutively to `to`, and notifies their keeper of copied pieces. Uses at most
// `threads` threads, including this one. Calls `is_aborted` every few milliseconds, from any of
// them. Returns false if aborted; the rest is then not copied.
bool CopyPieces(const Source& source, std::byte* to, int threads,
                absl::FunctionRef<bool()> is_aborted);

// Assembles matrices that are not in one piece.
class Gathering {
 public:
  // Uses at most `threads` threads to copy. Borrows `memory`. With `shared`, matrices for a worker
  // are put there, unless they are so small that they are copied for each launch.
  Gathering(WarmMemory& memory, int threads, const SharedMemory* shared = nullptr)
      : memory_(memory), threads_(threads), shared_(shared) {}

  // The address of the matrix; null if there is none. An aligned matrix in one piece is used in
  // place. Errors: ResourceExhausted if there is no memory; Cancelled if the job was aborted;
  // Internal for a source in device memory.
  absl::StatusOr<const std::byte*> Take(const Source& source, size_t alignment, AbortFlag abort);
  // All operands of a job, aligned for kernels. Errors: those of Take.
  absl::StatusOr<PerOperand<Piece>> TakeAll(const Job& job, AbortFlag abort);

 private:
  bool IsSeen(const Source& source) const;

  WarmMemory& memory_;
  const int threads_;
  const SharedMemory* const shared_;
  std::vector<HeldBytes> copies_;
};

// The launch arguments of a job in host memory, whose D goes to `d`. They point to the job's
// memory, or to `gathering`. Errors: those of Gathering.
absl::StatusOr<GemmArgs> ArgsOf(const Job& job, const Target& target,
                                absl::Span<std::byte> workspace, std::byte* d, AbortFlag abort,
                                Gathering& gathering);

// Checks operand contents. Takes time linear in their size, so the device's own thread does it, not
// the gRPC thread of the request. Errors: InvalidArgument if a sparse A is not in the portable 2:4
// form: "a.data: row 3, group 17: got indices 2, 2, want increasing". Once the flag is set, the
// rest is not checked.
absl::Status CheckOperands(const Problem& problem, const std::byte* a, AbortFlag abort);

// The same for a job. Assembles an A in pieces; an A in a block was checked when it was uploaded.
// Errors: also ResourceExhausted; Cancelled if aborted while assembling A.
absl::Status CheckOperands(const Job& job, AbortFlag abort);

}  // namespace gemmd
