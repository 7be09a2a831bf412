// SPDX-License-Identifier: Apache-2.0
//
// Where the matrices of a job lie, in the staging area and in the memory of the GPU alike: one
// after the other, first what is read, then D.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/problem.h"

namespace gemmd {

// Suffices for any load instruction and for LaunchOnStream.
inline constexpr int64_t kJobAlignment = 256;

struct JobRange {
  int64_t offset = 0;
  int64_t bytes = 0;  // 0: the matrix is not there.

  friend bool operator==(const JobRange&, const JobRange&) = default;
};

struct JobLayout {
  JobRange a;
  JobRange b;
  JobRange c;
  JobRange bias;
  JobRange a_scale;
  JobRange b_scale;
  JobRange d;
  int64_t end = 0;

  // Everything before D is read.
  int64_t input_bytes() const { return d.offset; }
};

// Lays out the matrices of a valid problem.
// Errors: ResourceExhausted where they take 2^63 bytes or more.
absl::StatusOr<JobLayout> LayOutJob(const Problem& problem);

// The launch of a problem whose matrices lie in `block`, by its layout. Borrows all of it.
GemmArgs ArgsAt(const Problem& problem, const Target& target, const JobLayout& layout,
                std::byte* block, absl::Span<std::byte> workspace);

}  // namespace gemmd
