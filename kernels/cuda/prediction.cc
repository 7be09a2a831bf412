// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/prediction.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/epilogue.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/plan.h"

namespace gemmd {
namespace {

double Tiles(int64_t extent, int tile) {
  return std::ceil(static_cast<double>(extent) / static_cast<double>(tile));
}

double TilesOf(const CudaRow& row, const Problem& problem) {
  return static_cast<double>(TilesDown(row, problem.m)) * Tiles(problem.n, row.tile.n) *
         static_cast<double>(problem.batch);
}

// Tiles that are computed at once: `together` on each of `busy` multiprocessors.
struct Round {
  double busy = 1;  // Multiprocessors.
  double together = 1;
};

Round RoundOf(const CudaRow& row, double tiles, const Target& target) {
  const double multiprocessors = std::max(1, target.multiprocessors);
  const double most = BlocksPerMultiprocessor(row, target.chip);
  return {.busy = std::min(tiles, multiprocessors),
          .together = std::min(std::ceil(tiles / multiprocessors), most)};
}

bool IsRagged(const OperandPlan& plan) {
  constexpr int64_t kLineOfCache = 128;
  return plan.line_stride_bytes % kLineOfCache != 0;
}

// A step of a round along k. `rate` is that of one multiprocessor.
double StepSeconds(const CudaRow& row, const CudaPlan& plan, const Round& round, double rate) {
  const double computing = 2.0 * row.tile.m * row.tile.n * row.tile.k / rate * round.together;
  const double bytes = StageBytes(row) * round.busy * round.together;
  const double chained = HoldsTile(row) ? StepsOfTile(row) * kChainedSeconds : 0;
  const bool is_ragged = IsRagged(plan.a) || IsRagged(plan.b);
  const double filling = is_ragged ? bytes / kRaggedBytesPerSecond
                                   : StageBytes(row) * round.together / kBytesPerSecondEach;
  return std::max({computing, chained, filling, kStageSeconds / row.stages});
}

// The time of a round in addition to its steps.
double EndSeconds(const CudaRow& row, const CudaPlan& plan, const Problem& problem,
                  const Round& round) {
  const bool activates = !plan.sums.are_kept && problem.activation != Activation::kNone &&
                         problem.activation != Activation::kRelu;
  const double of_element = (IsNarrow(row) ? kNarrowElementSeconds : kTileElementSeconds) +
                            (activates ? kActivationElementSeconds : 0);
  const double end = kTileSeconds + row.tile.m * row.tile.n * of_element;
  if (TakesTurns(row)) return kSeenInTurns * end;
  const double seen = HasWarpgroups(row) ? kSeenOfStayingBlocks : kSeenOfBlocks;
  return end * (1 + (round.together - 1) * seen);
}

double ComputeSeconds(const CudaRow& row, const CudaPlan& plan, const Problem& problem,
                      const Target& target, double rate) {
  const double multiprocessors = std::max(1, target.multiprocessors);
  const double tiles = TilesOf(row, problem);
  const Round round = RoundOf(row, tiles, target);
  const double steps =
      Tiles(problem.k, row.tile.k) * StepSeconds(row, plan, round, rate / multiprocessors);
  return std::ceil(tiles / (multiprocessors * round.together)) *
         (steps + EndSeconds(row, plan, problem, round));
}

// A shared matrix counts once.
double Bytes(const Problem& problem) {
  return static_cast<double>(BytesRead(problem)) + static_cast<double>(BytesWritten(problem));
}

// Lines that a tile loads per line inside the matrices. Above 2, the ratio hardly matters.
double LinesBrought(const CudaRow& row, const Problem& problem) {
  const double in_matrices = static_cast<double>(std::min<int64_t>(problem.m, row.tile.m) +
                                                 std::min<int64_t>(problem.n, row.tile.n));
  return std::min(2.0, (row.tile.m + row.tile.n) / in_matrices);
}

// Writing D if there is nothing to multiply.
double AloneSeconds(const Problem& problem, double at_once) {
  const auto lines = static_cast<double>(problem.d.lines());
  const auto length = static_cast<double>(problem.d.line_length());
  using Tile = EpilogueAloneTile;
  const double tiles = std::ceil(lines / Tile::kLines) * std::ceil(length / Tile::kLength) *
                       static_cast<double>(problem.batch);
  const double elements =
      std::min<double>(lines, Tile::kLines) * std::min<double>(length, Tile::kLength);
  return std::ceil(tiles / (kAloneBlocks * at_once)) * std::ceil(elements / Tile::kThreads) *
         kAloneElementSeconds;
}

// The kernel itself, and one per packed operand; a sparse A's metadata is always repacked. Resident
// operands were packed before.
double LaunchSeconds(const CudaPlan& plan, const Problem& problem) {
  const bool packs_a = plan.a.is_packed && !problem.a_stays;
  const bool packs_b = plan.b.is_packed && !problem.b_stays;
  const bool repacks = problem.a.is_sparse() && !problem.a_stays;
  // Split f32 products clear and check marks; factors of blocks are laid out.
  const int packs = (packs_a ? 1 : 0) + (packs_b ? 1 : 0) + (repacks ? 1 : 0) +
                    (plan.split.is_used ? 2 : 0) + (plan.factors.is_used() ? 1 : 0);
  return kLaunchSeconds + packs * kPackSeconds;
}

int64_t PackedBytes(const CudaPlan& plan, const Problem& problem) {
  return plan.split.bytes + plan.factors.bytes + (problem.a_stays ? 0 : plan.a_workspace_bytes) +
         (problem.b_stays ? 0 : plan.b_workspace_bytes);
}

// The kernel that makes D from kept sums.
double FinishSeconds(const CudaPlan& plan, const Problem& problem, double at_once) {
  return plan.sums.are_kept ? kPackSeconds + AloneSeconds(problem, at_once) : 0;
}

}  // namespace

double PredictedSeconds(const CudaRow& row, const Problem& problem, const DeviceProfile& profile,
                        double rate) {
  const double bandwidth = profile.memory_bytes_per_second;
  const double moving = bandwidth > 0 ? Bytes(problem) / bandwidth : 0;
  if (!problem.has_output()) return 0;
  const double at_once = std::max(1, profile.target.multiprocessors);
  if (!problem.has_product()) {
    return kLaunchSeconds + std::max(moving, AloneSeconds(problem, at_once));
  }
  const CudaPlan plan = PlanOf(row, problem).value_or(CudaPlan());
  const double launching = LaunchSeconds(plan, problem) + FinishSeconds(plan, problem, at_once);
  const auto packed_bytes = static_cast<double>(PackedBytes(plan, problem));
  // Packed bytes are read once and written once.
  const double packing = bandwidth > 0 ? 2 * packed_bytes / bandwidth : 0;
  const double idle_part = std::max(1.0, at_once / TilesOf(row, problem) / kMaxShare);
  const double bringing = moving * idle_part * LinesBrought(row, problem);
  const double computing = ComputeSeconds(row, plan, problem, profile.target, rate);
  return launching + packing + std::max(bringing, computing);
}

}  // namespace gemmd
