// SPDX-License-Identifier: Apache-2.0
//
// Loops over independent parts on OpenMP's threads, for long work on the host.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/matrix/abort.h"

namespace gemmd {

// Calls body(i) for every i from 0 to count - 1, until the flag is set. If `is_shared`, the calling
// thread's OpenMP threads take indices that follow each other. A loop of OpenMP's own cannot be
// left, and 2^40 empty steps take minutes; so that loop goes over runs of indices. What a body
// throws, it throws itself, and the rest is left out.
template <typename Body>
void ForEachUnlessAborted(AbortFlag abort, bool is_shared, int64_t count, const Body& body) {
  constexpr int64_t kMaxRuns = 4096;
  const int64_t runs = std::min(count, kMaxRuns);
  FirstException thrown;
#pragma omp parallel for schedule(static) if (is_shared)
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t share = count / runs;
    const int64_t longer = count % runs;  // So many runs have one index more.
    const int64_t first = run * share + std::min(run, longer);
    const int64_t end = first + share + (run < longer ? 1 : 0);
    thrown.Guard([&] {
      for (int64_t i = first; i < end && !IsSet(abort) && !thrown.is_there(); ++i) body(i);
    });
  }
  thrown.Rethrow();
}

}  // namespace gemmd
