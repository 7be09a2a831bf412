// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/prediction.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/geometry.h"
#include "kernels/cuda/plan.h"

namespace gemmd {
namespace {

double Tiles(int64_t extent, int tile) {
  return std::ceil(static_cast<double>(extent) / static_cast<double>(tile));
}

double ComputeSeconds(const CudaRow& row, const Problem& problem, int multiprocessors,
                      double rate) {
  const double tiles = static_cast<double>(TilesDown(row, problem.m)) *
                       Tiles(problem.n, row.tile.n) * static_cast<double>(problem.batch);
  const double operations_of_tile =
      2.0 * row.tile.m * row.tile.n * row.tile.k * Tiles(problem.k, row.tile.k);
  const double at_once = std::max(1, multiprocessors);
  return std::ceil(tiles / at_once) * operations_of_tile / (rate / at_once);
}

// A matrix that all products share is counted once.
double Bytes(const Problem& problem) {
  return static_cast<double>(BytesRead(problem)) + static_cast<double>(BytesWritten(problem));
}

// The kernel itself, and one for each operand that is packed; a sparse A's metadata always are.
double LaunchesOf(const CudaPlan& plan, const Problem& problem) {
  return 1 + (plan.a.is_packed ? 1 : 0) + (plan.b.is_packed ? 1 : 0) +
         (problem.a.is_sparse() ? 1 : 0);
}

}  // namespace

double PredictedSeconds(const CudaRow& row, const Problem& problem, const DeviceProfile& profile,
                        double rate) {
  const double bandwidth = profile.memory_bytes_per_second;
  const double moving = bandwidth > 0 ? Bytes(problem) / bandwidth : 0;
  if (!problem.has_output()) return 0;
  if (!problem.has_product()) return kLaunchSeconds + moving;
  const absl::StatusOr<CudaPlan> plan = PlanOf(row, problem);
  const double launches = plan.ok() ? LaunchesOf(*plan, problem) : 1;
  const double packed_bytes = plan.ok() ? static_cast<double>(plan->workspace_bytes) : 0;
  // Packed bytes are read once and written once.
  const double packing = bandwidth > 0 ? 2 * packed_bytes / bandwidth : 0;
  const double computing = ComputeSeconds(row, problem, profile.target.multiprocessors, rate);
  return launches * kLaunchSeconds + packing + std::max(moving, computing);
}

}  // namespace gemmd
