// SPDX-License-Identifier: Apache-2.0
//
// Where the matrices of a job lie, in the staging area and in the memory of the GPU alike: one
// behind the other, what is read first, then D.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/problem.h"

namespace gemmd {

// Enough for any load and for LaunchOnStream.
inline constexpr int64_t kJobAlignment = 256;

struct JobRange {
  int64_t offset = 0;
  int64_t bytes = 0;  // 0: not there.

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

// Of a valid problem.
// Errors: ResourceExhausted where all of it together leaves 63 bits.
absl::StatusOr<JobLayout> LayOutJob(const Problem& problem);

// Whether D has bytes or bits between lines or matrices that no kernel writes.
bool HasGaps(const Problem& problem);

}  // namespace gemmd
