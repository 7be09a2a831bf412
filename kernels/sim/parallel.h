// SPDX-License-Identifier: Apache-2.0
//
// Loops over independent parts on several threads. Without OpenMP, whose threads spin while
// waiting: on a busy machine, a product of 2 ms was seen to take 200 ms.
#pragma once

#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/matrix/abort.h"

namespace gemmd::sim {

// Calls body(worker, index) once for every index from 0 to count - 1 and returns when all calls are
// done; once the flag is set, skips the rest. Rethrows an exception of a call, and skips the rest.
// Each worker (0 .. threads - 1) has its own thread; worker 0 is the calling thread. Uses fewer
// threads if the system refuses more.
template <typename Body>
void ParallelFor(int threads, int64_t count, AbortFlag abort, const Body& body) {
  std::atomic<int64_t> next{0};
  FirstException thrown;
  const auto work = [&](int worker) {
    thrown.Guard([&] {
      for (int64_t i = next.fetch_add(1); i < count && !IsSet(abort) && !thrown.is_there();
           i = next.fetch_add(1)) {
        body(worker, i);
      }
    });
  };
  {
    std::vector<std::jthread> others;  // Joined at the end.
    for (int worker = 1; worker < threads && worker < count; ++worker) {
      try {
        others.emplace_back(work, worker);
      } catch (const std::system_error&) {
        break;
      }
    }
    work(0);
  }
  thrown.Rethrow();
}

}  // namespace gemmd::sim
