// SPDX-License-Identifier: Apache-2.0
//
// Loops over independent parts on OpenMP's threads, for long work on the host.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/matrix/abort.h"

namespace gemmd {

// Calls body(i) for every i from 0 to count - 1, until the flag is set. If `is_shared`, the calling
// thread's OpenMP threads share the indices in consecutive runs. An OpenMP loop cannot be left
// early, and 2^40 empty steps take minutes, so the OpenMP loop is over runs of indices. Rethrows
// the first exception of a body, and skips the rest.
template <typename Body>
void ForEachUnlessAborted(AbortFlag abort, bool is_shared, int64_t count, const Body& body) {
  constexpr int64_t kMaxRuns = 4096;
  const int64_t runs = std::min(count, kMaxRuns);
  FirstException thrown;
#pragma omp parallel for schedule(static) if (is_shared)
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t share = count / runs;
    const int64_t longer = count % runs;  // This many runs have one more index.
    const int64_t first = run * share + std::min(run, longer);
    const int64_t end = first + share + (run < longer ? 1 : 0);
    thrown.Guard([&] {
      for (int64_t i = first; i < end && !IsSet(abort) && !thrown.is_there(); ++i) body(i);
    });
  }
  thrown.Rethrow();
}

}  // namespace gemmd
