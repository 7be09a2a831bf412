// SPDX-License-Identifier: Apache-2.0
#include "kernels/sim/prediction.h"

#include <algorithm>
#include <numeric>

#include "kernels/device_profile.h"
#include "kernels/matrix/split_float.h"
#include "kernels/mma/fragment.h"
#include "kernels/sim/product.h"
#include "kernels/sim/vector/runs.h"

namespace gemmd::sim {
namespace {

using mma::Instruction;

// As kernels/sim/vector_product.cc divides the result.
constexpr int64_t kSuperLines = 2048;
constexpr int64_t kTaskRows = 64;
constexpr int64_t kTaskColumns = 4 * kPanel;
constexpr double kSharedMultiplications = 2e5;

double DivideUp(int64_t a, int64_t b) { return static_cast<double>(a / b) + (a % b > 0 ? 1 : 0); }

double RoundUp(int64_t a, int64_t b) { return DivideUp(a, b) * static_cast<double>(b); }

// Elements of A, B and D in the registers of one instruction, weighted by the cost of locating
// each: 1 for an element of mma, more for wmma, almost 0 in shared memory.
double MappedElements(const Instruction& instruction) {
  constexpr double kWmma = 2;
  constexpr double kSharedMemory = 0.2;
  double elements = 0;
  for (const mma::Operand operand : {mma::Operand::kA, mma::Operand::kB, mma::Operand::kD}) {
    elements += instruction.lanes() * mma::ElementsPerLane(instruction, operand);
  }
  if (instruction.family == mma::Family::kWmma) elements *= kWmma;
  if (instruction.is_warpgroup()) elements += kSharedMemory * instruction.k * instruction.n;
  return elements;
}

// The shape padded to whole tiles.
struct PaddedShape {
  double rows;
  double columns;
  double depth;
};

PaddedShape PaddedShapeOf(const Instruction& instruction, const Problem& problem, Path path) {
  const int64_t rows = instruction.m * instruction.products();
  const bool is_vector = path != Path::kScalar;
  const int64_t row_step = is_vector ? std::lcm(rows, int64_t{kIntegerRows}) : rows;
  const int64_t column_step =
      is_vector ? std::lcm(int64_t{instruction.n}, int64_t{kPanel}) : int64_t{instruction.n};
  return {RoundUp(problem.m, row_step), RoundUp(problem.n, column_step),
          RoundUp(problem.k, instruction.k)};
}

// The scalar path packs operands for each tile; the vector path once per chunk.
double PackedElements(const Instruction& instruction, const Problem& problem,
                      const PaddedShape& shape, Path path) {
  const double held = instruction.is_sparse() ? 0.5 : 1;
  if (path == Path::kScalar) {
    const double rows = instruction.m * instruction.products();
    const double tiles = shape.rows / rows * (shape.columns / instruction.n);
    return tiles * shape.depth *
           (rows * held + static_cast<double>(instruction.n) * instruction.products() +
            rows * instruction.n / static_cast<double>(instruction.k));
  }
  return shape.rows * shape.depth * held * DivideUp(problem.n, kSuperLines) +
         shape.columns * shape.depth * DivideUp(problem.m, kSuperLines);
}

// The part of the packed elements that the operands have; those beyond their edges are zeros.
double ShareInside(const Problem& problem, const PaddedShape& shape, double held) {
  const auto k = static_cast<double>(problem.k);
  const double inside = static_cast<double>(problem.m) * held + static_cast<double>(problem.n);
  return inside * k / ((shape.rows * held + shape.columns) * shape.depth);
}

const SimulatorTimes* Find(const DeviceProfile& profile, std::string_view engine) {
  if (profile.host == nullptr) return nullptr;
  for (const SimulatorTimes& times : profile.host->simulators) {
    if (times.engine == engine) return &times;
  }
  return nullptr;
}

// A part is shared by at most as many threads as tasks.
double Shared(double seconds, double threads, double tasks) {
  return seconds / std::clamp(tasks, 1.0, threads);
}

// The time of one matrix without its epilogue.
double MultiplyingSeconds(const Instruction& instruction, const Problem& problem,
                          const SimulatedWork& work, const SimulatedWork& seconds,
                          const HostCosts& costs) {
  std::array<double, SimulatedWork::kParts> parts = {};
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = work.parts[i] * seconds.parts[i];
  const double packing = parts[SimulatedWork::kPacked] + parts[SimulatedWork::kNarrow];
  const double alone = parts[SimulatedWork::kMatrix] + parts[SimulatedWork::kMapped];
  const double threads =
      work.parts[SimulatedWork::kMultiplied] < kSharedMultiplications ? 1 : costs.threads;
  const double tiles = DivideUp(problem.m, int64_t{instruction.m} * instruction.products()) +
                       DivideUp(problem.n, instruction.n);
  const double tasks = DivideUp(problem.m, kTaskRows) * DivideUp(problem.n, kTaskColumns);
  const double row_tiles = DivideUp(problem.m, int64_t{instruction.m} * instruction.products());
  constexpr double kRegions = 3;  // Packing, multiplying, storing.
  return alone + Shared(packing, threads, tiles) +
         Shared(parts[SimulatedWork::kMultiplied], threads, tasks) +
         Shared(parts[SimulatedWork::kStored], threads, row_tiles) +
         kRegions * (threads - 1) * costs.start_thread;
}

// A product of the kernel's own types.
Problem ProblemOf(const Kernel& kernel, int64_t m, int64_t n, int64_t k) {
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.a = kernel.instruction->is_sparse()
                  ? TightSparseLayout("a", kernel.a, m, k).value()
                  : TightLayout("a", kernel.a, Order::kRowMajor, m, k).value();
  problem.b = TightLayout("b", kernel.b, Order::kRowMajor, k, n).value();
  problem.d = TightLayout("d", kernel.recipe.accumulation, Order::kRowMajor, m, n).value();
  problem.accumulation = kernel.recipe.accumulation;
  if (kernel.instruction->bit_count == mma::BitCount::kXor) {
    problem.bit_operation = BitOperation::kXor;
  }
  return problem;
}

// The time of a split-f32 product: two f16 products, one of them twice as deep, plus splitting.
// Exact f64 sums take one multiplication after another.
double SplittingSeconds(const Instruction& instruction, const Problem& problem,
                        const SimulatedWork& seconds, mma::Chip chip, const HostCosts& costs) {
  const auto m = static_cast<double>(problem.m);
  const auto n = static_cast<double>(problem.n);
  const auto k = static_cast<double>(problem.k);
  const double lines = static_cast<double>(costs.threads - 1) * costs.start_thread;
  if (!IsSplit(problem.k)) {
    const double element = costs.splitting.sum + k * costs.splitting.add;
    return lines + Shared(m * n * element, costs.threads, m);
  }
  const auto of_depth = [&](int64_t depth) {
    Problem half = problem;
    half.k = depth;
    return MultiplyingSeconds(instruction, half, WorkOf(instruction, chip, half), seconds, costs);
  };
  return of_depth(problem.k) + of_depth(2 * problem.k) + 3 * lines +
         Shared((m + n) * k * costs.splitting.split + m * n * costs.splitting.join, costs.threads,
                m);
}

}  // namespace

SimulatedWork WorkOf(const Instruction& instruction, mma::Chip chip, const Problem& problem) {
  const Path path = BestPath(instruction, chip);
  const PaddedShape shape = PaddedShapeOf(instruction, problem, path);
  const double packed = PackedElements(instruction, problem, shape, path);
  const bool is_narrow = BitsOf(instruction.a) < 8 || BitsOf(instruction.b) < 8;
  const double held = instruction.is_sparse() ? 0.5 : 1;
  SimulatedWork work;
  work.parts[SimulatedWork::kMatrix] = 1;
  work.parts[SimulatedWork::kMapped] = MappedElements(instruction);
  work.parts[SimulatedWork::kPacked] = packed;
  work.parts[SimulatedWork::kNarrow] = is_narrow ? packed * ShareInside(problem, shape, held) : 0;
  work.parts[SimulatedWork::kMultiplied] = shape.rows * shape.columns * shape.depth * held;
  work.parts[SimulatedWork::kStored] = shape.rows * shape.columns;
  return work;
}

std::vector<Problem> SampleProblems(const Kernel& kernel, mma::Chip chip) {
  const Instruction& instruction = *kernel.instruction;
  const bool is_vector = BestPath(instruction, chip) != Path::kScalar;
  const int64_t m = int64_t{instruction.m} * instruction.products();
  const int64_t n = instruction.n;
  const int64_t k = instruction.k;
  const int64_t lines = is_vector ? 128 : 16;
  // One tile, shallow and deep; few columns, few rows, many of both, and a larger deep product.
  std::vector<Problem> problems = {
      ProblemOf(kernel, 1, 1, 1),         ProblemOf(kernel, 1, 1, 16 * k),
      ProblemOf(kernel, lines, 1, k),     ProblemOf(kernel, 1, lines, k),
      ProblemOf(kernel, lines, lines, k), ProblemOf(kernel, m, n, k)};
  problems.push_back(is_vector ? ProblemOf(kernel, 64, 64, 256) : ProblemOf(kernel, 16, 16, 4 * k));
  return problems;
}

double PredictedSeconds(const Kernel& kernel, const Problem& problem, const DeviceProfile& profile,
                        double rate) {
  const SimulatorTimes* const times = Find(profile, kernel.engine);
  if (times == nullptr) return EngineSeconds(kernel, problem, profile, rate);
  const HostCosts& costs = *profile.host;
  if (!problem.has_output()) return costs.launch;
  const Instruction& instruction = *kernel.instruction;
  const ElementType sum = instruction.d == ElementType::kF16 ? ElementType::kF32 : instruction.d;
  double matrix = EpilogueSeconds(costs, problem, sum, sum);
  if (problem.has_product() && kernel.recipe.splits_f32) {
    matrix += SplittingSeconds(instruction, problem, times->seconds, profile.target.chip, costs);
  } else if (problem.has_product()) {
    matrix +=
        MultiplyingSeconds(instruction, problem, WorkOf(instruction, profile.target.chip, problem),
                           times->seconds, costs);
  }
  return costs.launch + static_cast<double>(problem.batch) * matrix;
}

}  // namespace gemmd::sim
