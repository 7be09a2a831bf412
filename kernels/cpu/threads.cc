// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/threads.h"

#include <omp.h>

#include <algorithm>
#include <chrono>

namespace gemmd {
namespace {

// dnnl_sgemm on 2 threads against 1 was measured at 171 against 228 GFLOP/s at 64^3 (0.5e6
// operations) and 334 against 253 at 80^3 (1.0e6).
constexpr double kSharedOperations = 1e6;

// However short its sum is, an element of D takes as long as this many multiplications and
// additions.
constexpr int64_t kLeastDepth = 64;

}  // namespace

bool IsTooSmallToShare(const Problem& problem, int64_t matrices) {
  const double operations = 2 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
                            static_cast<double>(std::max(problem.k, kLeastDepth));
  return operations * static_cast<double>(matrices) < kSharedOperations;
}

int ThreadsOfLaunches() { return omp_get_max_threads(); }

double MeasureSharing(int threads) {
  constexpr int kTimes = 20;
  // Threads that wait for each other by spinning may share a core while this is measured; at work
  // they have one each.
  double shortest = 2e-5;
  if (threads <= 1) return 0;
  for (int i = 0; i < kTimes; ++i) {
    int sum = 0;
    const auto start = std::chrono::steady_clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += omp_get_thread_num();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (sum >= 0) shortest = std::min(shortest, elapsed.count());
  }
  return shortest;
}

OneThread::OneThread() : restored_(omp_get_max_threads()) {
  if (restored_ > 1) omp_set_num_threads(1);
}

OneThread::~OneThread() {
  if (restored_ > 1) omp_set_num_threads(restored_);
}

}  // namespace gemmd
