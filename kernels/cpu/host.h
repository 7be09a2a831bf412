// SPDX-License-Identifier: Apache-2.0
//
// This machine's processor as a target for kernels, and the number of threads per launch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/problem.h"
#include "kernels/select.h"

namespace gemmd {

// Sets how many threads the libraries use for launches made by the calling thread from now on.
void SetThreads(int threads);

// Features of this processor.
Target HostTarget();
bool HasAmx();

// The processor's own name ("AMD EPYC ...").
std::string ProcessorName();

struct LibraryVersion {
  std::string name;
  std::string version;
};
std::vector<LibraryVersion> CpuLibraries();

// Whether this many matrices of the problem finish before a second thread would wake up.
bool IsTooSmallToShare(const Problem& problem, int64_t matrices);

// How many threads launches of the calling thread may use (SetThreads).
int ThreadsOfLaunches();

// The wall time to hand work to `threads` OpenMP threads and wait for them, in seconds.
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
