// SPDX-License-Identifier: Apache-2.0
//
// The matrices of a job as kernels of the host take them: each in one piece, and looked at where
// only their bytes show whether they are valid.
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

// From so many bytes on, several threads copy: one alone does not use the memory's bandwidth, but
// starting another takes as long as copying some hundred kilobytes.
inline constexpr int64_t kParallelCopyBytes = int64_t{8} << 20;

// Copies the pieces one after the other to `to`, which has room for all, and tells their keeper of
// those that are copied. At most `threads` threads copy, this one among them. `is_aborted` is asked
// every few milliseconds, by any of them.
// False where it said so; the rest is then not copied.
bool CopyPieces(const Source& source, std::byte* to, int threads,
                absl::FunctionRef<bool()> is_aborted);

// Matrices that were not in one piece, put together.
class Gathering {
 public:
  // At most so many threads copy. Borrows the memory's owner. With `shared`, what a worker is to
  // see is put there, unless it is so short that it is copied for each launch.
  Gathering(WarmMemory& memory, int threads, const SharedMemory* shared = nullptr)
      : memory_(memory), threads_(threads), shared_(shared) {}

  // Where the matrix begins; null where there is none. What lies in one piece at a multiple of
  // `alignment` stays where it is.
  // Errors: ResourceExhausted where there is no memory; Cancelled where the job was aborted;
  // Internal for a source in memory of a device.
  absl::StatusOr<const std::byte*> Take(const Source& source, size_t alignment, AbortFlag abort);
  // All operands of a job, as kernels want them aligned. Errors: as Take.
  absl::StatusOr<PerOperand<Piece>> TakeAll(const Job& job, AbortFlag abort);

 private:
  bool IsSeen(const Source& source) const;

  WarmMemory& memory_;
  const int threads_;
  const SharedMemory* const shared_;
  std::vector<HeldBytes> copies_;
};

// The launch of a job on memory of the host, whose D goes to `d`. What it points at is the job's,
// or lives in `gathering`. Errors: as Gathering.
absl::StatusOr<GemmArgs> ArgsOf(const Job& job, const Target& target,
                                absl::Span<std::byte> workspace, std::byte* d, AbortFlag abort,
                                Gathering& gathering);

// Looks at what only the bytes of a job's operands show. It takes as long as they are large, so the
// device's own thread does it, and not the thread of gRPC that took the request.
// Errors: InvalidArgument where a sparse A is not in the portable 2:4 form: "a.data: row 3, group
// 17: got indices 2, 2, want increasing".
// Once the flag is set, the rest is not looked at.
absl::Status CheckOperands(const Problem& problem, const std::byte* a, AbortFlag abort);

// The same for a job. An A in pieces is put together for it; one in a block was looked at when it
// came there.
// Errors: ResourceExhausted besides; Cancelled where it was aborted while A was put together.
absl::Status CheckOperands(const Job& job, AbortFlag abort);

}  // namespace gemmd
