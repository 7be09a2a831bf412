// SPDX-License-Identifier: Apache-2.0
//
// How many threads one launch uses.
#pragma once

#include <cstdint>

#include "kernels/problem.h"

namespace gemmd {

// Whether this many matrices of the problem are done before a second thread would have woken up.
bool IsTooSmallToShare(const Problem& problem, int64_t matrices);

// How many threads launches of the calling thread may use (SetThreads).
int ThreadsOfLaunches();

// What handing work to so many OpenMP threads and waiting for them takes, in seconds of the wall.
double MeasureSharing(int threads);

// Restricts the calling thread's OpenMP to one thread for as long as this lives.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int restored_;
};

}  // namespace gemmd
