// SPDX-License-Identifier: Apache-2.0
//
// Copies of matrices, by one thread or several, and what host kernels need: each matrix in one
// piece, and checked operand contents.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/matrix/abort.h"
#include "server/device/device.h"
#include "server/device/held_bytes.h"
#include "server/device/job.h"
#include "server/system/threads.h"

namespace gemmd {

// One copy of bytes.
struct CopiedBytes {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
  // If not null: is told when this piece of its source has been copied, unless the piece is long.
  PieceKeeper* keeper = nullptr;
  size_t piece = 0;
};

// Few products have more.
using Copies = absl::InlinedVector<CopiedBytes, 4>;

// Copies on the calling thread.
void CopyAll(const Copies& copies);

// Threads that copy large matrices together, because one does not saturate the host's memory
// bandwidth.
class CopyThreads {
 public:
  using Work = ThreadPool::Work;

  // One per four processors, at most four.
  static int DefaultThreads();

  explicit CopyThreads(int threads) : pool_("gemmd-copy", threads) {}

  // Runs the work on one of the threads.
  void Run(Work work) { pool_.Run(std::move(work)); }
  // Copies until done or `is_aborted`; then calls `done` from one of the threads. Borrows the flag.
  // Calls are processed in order, each with all threads.
  void Copy(Copies copies, const std::atomic<bool>& is_aborted, Work done);

 private:
  ThreadPool pool_;
};

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
  // are put there, unless they are in one piece and so small that they are copied for each launch.
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

// Checks operand contents. Takes time linear in their size, so the device's own thread does it, not
// the gRPC thread of the request. Errors: InvalidArgument if a sparse A is not in the portable 2:4
// form: "a.data: row 3, group 17: got indices 2, 2, want increasing". Once the flag is set, the
// rest is not checked.
absl::Status CheckOperands(const Problem& problem, const std::byte* a, AbortFlag abort);

// The same for a job. Assembles an A in pieces; an A in a block was checked when it was uploaded.
// Errors: also ResourceExhausted; Cancelled if aborted while assembling A.
absl::Status CheckOperands(const Job& job, AbortFlag abort);

}  // namespace gemmd
