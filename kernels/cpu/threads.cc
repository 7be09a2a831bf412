// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/threads.h"

#include <omp.h>

namespace gemmd {
namespace {

// Waking the other threads takes some microseconds, in which one thread does this many operations.
constexpr double kSharedOperations = 1e6;

}  // namespace

ThreadLimit::ThreadLimit(const Problem& problem) {
  const double operations = 2 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                            static_cast<double>(problem.k);
  const int threads = omp_get_max_threads();
  if (threads > 1 && operations < kSharedOperations) {
    restored_ = threads;
    omp_set_num_threads(1);
  }
}

ThreadLimit::~ThreadLimit() {
  if (restored_ != 0) omp_set_num_threads(restored_);
}

}  // namespace gemmd
