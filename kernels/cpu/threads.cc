// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/threads.h"

#include <omp.h>

#include <algorithm>

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

OneThread::OneThread() : restored_(omp_get_max_threads()) {
  if (restored_ > 1) omp_set_num_threads(1);
}

OneThread::~OneThread() {
  if (restored_ > 1) omp_set_num_threads(restored_);
}

}  // namespace gemmd
