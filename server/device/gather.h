// SPDX-License-Identifier: Apache-2.0
//
// The matrices of a job as kernels of the host take them: each in one piece.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/abort.h"
#include "server/device/job.h"
#include "server/device/warm_memory.h"

namespace gemmd {

// Matrices that were not in one piece, put together.
class Gathering {
 public:
  // At most so many threads copy. Borrows the memory's owner.
  Gathering(WarmMemory& memory, int threads) : memory_(memory), threads_(threads) {}

  // Where the matrix begins; null where there is none. What lies in one piece at a multiple of
  // `alignment` stays where it is.
  // Errors: ResourceExhausted where there is no memory; Cancelled where the job was aborted;
  // Internal for a source in memory of a device.
  absl::StatusOr<const std::byte*> Take(const Source& source, size_t alignment, AbortFlag abort);

 private:
  WarmMemory& memory_;
  const int threads_;
  std::vector<HeldBytes> copies_;
};

// The launch of a job on memory of the host, whose D goes to `d`. What it points at is the job's,
// or lives in `gathering`. Errors: as Gathering.
absl::StatusOr<GemmArgs> ArgsOf(const Job& job, const Target& target,
                                absl::Span<std::byte> workspace, std::byte* d, AbortFlag abort,
                                Gathering& gathering);

}  // namespace gemmd
