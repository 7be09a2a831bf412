// SPDX-License-Identifier: Apache-2.0
//
// Products that wait for a device at the same time and can run there as one.
//
//   Batched: products of one shape, kernel and epilogue become one batch of matrices.
//   Stacked: products of one B, which stays with the device or its memory, become one product whose
//   A has the rows of them all, one below the other.
//
// The bits of every product are those that it would have alone: only kernels whose bits of a row
// depend neither on m nor on the batch join. Knows no queue, no clock and no lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/device/held_bytes.h"
#include "server/device/job.h"

namespace gemmd {

// What one job of several may take together. A longer one would keep the device from an abort, and
// a larger one gains nothing.
struct JoinLimits {
  int64_t max_jobs = 256;
  int64_t max_bytes = int64_t{16} << 20;  // Operands that are copied, and D.
  // All of them are expected to take at most so long, or twice as long as the first one alone.
  int64_t max_expected_ns = 5'000'000;
};

// What jobs that run as one have in common: equal keys of one kind mean that they can. Empty where
// a job cannot run with others in this way.
struct JoinKeys {
  std::string stacked;
  std::string batched;
};
JoinKeys JoinKeysOf(const Job& job);

// The bytes of a job that count against JoinLimits.
int64_t JoinBytesOf(const Job& job);

enum class Joining : uint8_t { kStacked, kBatched };

// Several jobs as one, which borrows what they borrow.
class JoinedJob {
 public:
  // Takes at least one job; all have the same key of this kind.
  // Errors: Unimplemented where the kernel does not run the whole; ResourceExhausted where its
  // workspace would be too large.
  static absl::StatusOr<std::unique_ptr<JoinedJob>> Of(Joining joining,
                                                       std::vector<const Job*> members);

  // Lives as long as this.
  const Job& job() const { return job_; }

  // Each member's part of D, in their order, in memory of its own: who reads his answer slowly
  // keeps no other's. Errors: ResourceExhausted where there is no memory.
  std::vector<absl::StatusOr<HeldBytes>> Split(absl::Span<const std::byte> d) const;

 private:
  explicit JoinedJob(std::vector<const Job*> members) : members_(std::move(members)) {}
  absl::Status Join(Joining joining);
  void Stack();
  void Batch();
  void Together(Source Job::*of, MatrixLayout& layout);
  Source Concatenated(Source Job::*of);

  const std::vector<const Job*> members_;
  SourcePieces pieces_;
  Job job_;
};

}  // namespace gemmd
