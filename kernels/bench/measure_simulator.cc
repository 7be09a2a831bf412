// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/measure_simulator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/bench/operands.h"
#include "kernels/bench/problem.h"
#include "kernels/bench/statistics.h"
#include "kernels/matrix/element.h"
#include "kernels/matrix/status.h"
#include "kernels/matrix/text.h"

namespace gemmd::bench {
namespace {

constexpr int64_t kCheckedRows = 2;
constexpr int kMinSamples = 3;

ElementType AccumulatorType(const Kernel& kernel) {
  return kernel.instruction->d == ElementType::kF16 ? ElementType::kF32 : kernel.instruction->d;
}

std::vector<std::byte> MakeAccumulators(const Kernel& kernel, const Problem& problem) {
  return std::vector<std::byte>(
      static_cast<size_t>(problem.m * problem.n * BitsOf(AccumulatorType(kernel)) / 8));
}

void Multiply(const Kernel& kernel, mma::Chip chip, sim::Path path, const Problem& problem,
              const Operands& operands, std::vector<std::byte>& accumulators) {
  sim::Multiply(path,
                {.instruction = *kernel.instruction,
                 .chip = chip,
                 .problem = problem,
                 .a = operands.a.data(),
                 .b = operands.b.data()},
                {.data = accumulators.data(),
                 .type = AccumulatorType(kernel),
                 .order = Order::kRowMajor,
                 .leading_dimension = problem.n});
}

// Compares the first rows (or all, if few) with the scalar path.
absl::StatusOr<std::string> Compare(const Kernel& kernel, mma::Chip chip, const Problem& problem,
                                    sim::Path path) {
  Problem few = problem;
  few.m = std::min(problem.m, kCheckedRows);
  few.a.rows = few.d.rows = few.m;
  ASSIGN_OR_RETURN(const Operands operands, DrawOperands(few, 0));
  std::vector<std::byte> want = MakeAccumulators(kernel, few);
  std::vector<std::byte> got = want;
  Multiply(kernel, chip, sim::Path::kScalar, few, operands, want);
  Multiply(kernel, chip, path, few, operands, got);
  const auto differs = std::mismatch(want.begin(), want.end(), got.begin());
  if (differs.first == want.end()) return "ok";
  return Concat("byte ", differs.first - want.begin(), " differs from the scalar path");
}

}  // namespace

std::string_view NameOf(sim::Path path) {
  switch (path) {
    case sim::Path::kScalar: return "scalar";
    case sim::Path::kAvx2: return "avx2";
    case sim::Path::kAvx512: return "avx512";
  }
  return "";
}

std::vector<sim::Path> PathsOf(const Kernel& kernel, mma::Chip chip) {
  std::vector<sim::Path> paths;
  for (const sim::Path path : {sim::Path::kScalar, sim::Path::kAvx2, sim::Path::kAvx512}) {
    if (sim::CanRun(path, *kernel.instruction, chip)) paths.push_back(path);
  }
  return paths;
}

absl::StatusOr<SimulatorMeasurement> MeasureOnSimulator(const Kernel& kernel, mma::Chip chip,
                                                        sim::Path path, const Shape& shape,
                                                        const SimulatorSettings& settings) {
  RETURN_IF_ERROR(kernel.available({.kind = DeviceKind::kSim, .chip = chip}));
  const Orders orders = {.a = Order::kRowMajor, .b = settings.b_order, .d = Order::kRowMajor};
  ASSIGN_OR_RETURN(const Problem problem, MakeProblem(kernel, shape, orders));
  RETURN_IF_ERROR(CheckMemory(problem, 1));
  ASSIGN_OR_RETURN(const Operands operands, DrawOperands(problem, 0));
  std::vector<std::byte> accumulators = MakeAccumulators(kernel, problem);
  std::vector<double> times;
  const auto start = std::chrono::steady_clock::now();
  std::chrono::duration<double> total{0};
  while (static_cast<int>(times.size()) < kMinSamples || total.count() < settings.seconds) {
    const auto before = std::chrono::steady_clock::now();
    Multiply(kernel, chip, path, problem, operands, accumulators);
    const auto after = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double>(after - before).count());
    total = after - start;
  }
  const double all = shape.operations() / 2;
  ASSIGN_OR_RETURN(std::string verdict, Compare(kernel, chip, problem, path));
  return SimulatorMeasurement{.kernel = std::string(kernel.name),
                              .chip = std::string(mma::NameOf(chip)),
                              .path = std::string(NameOf(path)),
                              .shape = shape,
                              .median_seconds = Median(times),
                              .fastest_seconds = Quantile(times, 0),
                              .multiplications = kernel.instruction->is_sparse() ? all / 2 : all,
                              .samples = static_cast<int>(times.size()),
                              .verdict = std::move(verdict)};
}

std::vector<Column> SimulatorColumns() {
  return {{"kernel", -40}, {"chip", -7},   {"path", -7}, {"m x n x k", 15},
          {"GMAC/s", 9},   {"fastest", 9}, {"check", -1}};
}

Entry EntryOf(const SimulatorMeasurement& m) {
  const auto rate_text = [&m](double seconds) {
    return absl::StrFormat("%.3f", m.multiplications / seconds / 1e9);
  };
  return {.kernel = m.kernel,
          .shape = m.shape,
          .fields = {{"kernel", m.kernel},
                     {"chip", m.chip},
                     {"path", m.path},
                     {"m", m.shape.m},
                     {"n", m.shape.n},
                     {"k", m.shape.k},
                     {"median_seconds", m.median_seconds},
                     {"fastest_seconds", m.fastest_seconds},
                     {"multiplications", m.multiplications},
                     {"samples", m.samples},
                     {"check", m.verdict}},
          .cells = {m.kernel, m.chip, m.path, NameOf(m.shape), rate_text(m.median_seconds),
                    rate_text(m.fastest_seconds), m.verdict},
          .is_right = m.verdict == "ok"};
}

}  // namespace gemmd::bench
