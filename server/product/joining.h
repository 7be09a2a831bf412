// SPDX-License-Identifier: Apache-2.0
//
// Products that wait for a device at the same time and can run there as one (JoinedJob). Knows no
// queue, no clock and no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/container/inlined_vector.h"
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

// What jobs that run as one have in common: equal keys mean that they can. Empty if a job cannot
// run with others in this way. Keys without vectors fit in without an allocation.
using JoinKey = absl::InlinedVector<char, 320>;
struct JoinKeys {
  JoinKey stacked;
  JoinKey batched;
};
JoinKeys JoinKeysOf(const Job& job);

// Whether the bits of a D that may vary (Job::may_vary) depend on what is stacked with it, where B
// is a tensor: on `cpu`, for kernels whose bits depend on m. To read a B once for many rows is
// worth more to most callers than the order in which a library adds. Such products are never
// batched.
bool MayVaryJoined(const Kernel& kernel);

// The bytes of a job that count against JoinLimits.
int64_t JoinBytesOf(const Job& job, Joining joining);

// Places of the host's memory that D's of several jobs overwrite together.
class OverwrittenPlaces {
 public:
  // Notes the place of the job's D, if it is given one. False, and nothing is noted, where that
  // shares bytes with another place but is not the same.
  bool Add(const Job& job);

 private:
  std::map<const std::byte*, const std::byte*> ends_;  // By where they begin.
};

}  // namespace gemmd
