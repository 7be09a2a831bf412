// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/simulator_timing.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_format.h"
#include "kernels/element.h"
#include "kernels/sparse24.h"
#include "kernels/status_macros.h"
#include "kernels/text.h"

namespace gemmd::bench {
namespace {

constexpr int64_t kCheckedRows = 2;
constexpr int kLeastSamples = 3;

void FillElements(ElementType type, std::byte* line, int64_t count, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = IsInteger(type) ? random() : Encode(type, normal(random));
    StoreBits(type, line, i, bits);
  }
}

std::vector<std::byte> RandomDense(const MatrixLayout& layout, std::mt19937_64& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(layout.batch_stride_bytes));
  for (int64_t line = 0; line < layout.lines(); ++line) {
    FillElements(layout.type, bytes.data() + line * layout.line_stride_bytes(),
                 layout.line_length(), random);
  }
  return bytes;
}

// Every group keeps its first and its last unit, or one of the two.
std::vector<std::byte> RandomSparse(const SparseLayout& layout, std::mt19937_64& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(layout.bytes));
  for (int64_t row = 0; row < layout.rows; ++row) {
    FillElements(layout.type, bytes.data() + layout.values_offset(row), layout.kept(), random);
    for (int64_t group = 0; group < layout.groups; ++group) {
      const auto first = static_cast<int64_t>(random() % 2);
      const int64_t nibble = layout.form.kept_units() == 1
                                 ? first
                                 : first | static_cast<int64_t>(2 + random() % 2) << 2;
      const int64_t bit = group * layout.form.index_bits();
      bytes[static_cast<size_t>(layout.indices_offset(row) + bit / 8)] |=
          static_cast<std::byte>(nibble << (bit % 8));
    }
  }
  return bytes;
}

absl::StatusOr<Problem> SimulatorProblem(const Kernel& kernel, const Shape& shape) {
  Problem problem;
  problem.m = shape.m;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.accumulation = kernel.recipe.accumulation;
  if (kernel.instruction->bit_count == mma::BitCount::kXor) {
    problem.bit_operation = BitOperation::kXor;
  }
  if (kernel.instruction->is_sparse()) {
    ASSIGN_OR_RETURN(problem.a, TightSparseLayout("a", kernel.a, shape.m, shape.k));
  } else {
    ASSIGN_OR_RETURN(problem.a, TightLayout("a", kernel.a, Order::kRowMajor, shape.m, shape.k));
  }
  ASSIGN_OR_RETURN(problem.b, TightLayout("b", kernel.b, Order::kRowMajor, shape.k, shape.n));
  ASSIGN_OR_RETURN(problem.d,
                   TightLayout("d", kernel.instruction->d, Order::kRowMajor, shape.m, shape.n));
  RETURN_IF_ERROR(Validate(problem));
  RETURN_IF_ERROR(kernel.supports(problem));
  return problem;
}

// Operands of one product and the accumulators of whoever multiplies them.
class Sample {
 public:
  Sample(const Kernel& kernel, mma::Chip chip, const Problem& problem)
      : instruction_(*kernel.instruction), chip_(chip), problem_(problem) {
    std::mt19937_64 random(1);
    if (instruction_.is_sparse()) {
      a_ = RandomSparse(*SparseLayoutOf("a", kernel.a, problem.m, problem.k), random);
    } else {
      a_ = RandomDense(problem.a, random);
    }
    b_ = RandomDense(problem.b, random);
  }

  std::vector<std::byte> MakeAccumulators() const {
    return std::vector<std::byte>(
        static_cast<size_t>(problem_.m * problem_.n * BitsOf(Type()) / 8));
  }

  void Multiply(sim::Path path, std::vector<std::byte>& accumulators) const {
    sim::Multiply(path,
                  {.instruction = instruction_,
                   .chip = chip_,
                   .problem = problem_,
                   .a = a_.data(),
                   .b = b_.data()},
                  {.data = accumulators.data(),
                   .type = Type(),
                   .order = Order::kRowMajor,
                   .leading_dimension = problem_.n});
  }

 private:
  ElementType Type() const {
    return instruction_.d == ElementType::kF16 ? ElementType::kF32 : instruction_.d;
  }

  const mma::Instruction& instruction_;
  const mma::Chip chip_;
  const Problem problem_;
  std::vector<std::byte> a_;
  std::vector<std::byte> b_;
};

// The first rows by the scalar path; of a product with few rows all of them.
std::string Compare(const Kernel& kernel, mma::Chip chip, const Problem& problem, sim::Path path) {
  Problem few = problem;
  few.m = std::min(problem.m, kCheckedRows);
  few.a.rows = few.d.rows = few.m;
  const Sample sample(kernel, chip, few);
  std::vector<std::byte> want = sample.MakeAccumulators();
  std::vector<std::byte> got = want;
  sample.Multiply(sim::Path::kScalar, want);
  sample.Multiply(path, got);
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

absl::StatusOr<SimulatorRun> MeasureSimulator(const Kernel& kernel, mma::Chip chip, sim::Path path,
                                              const Shape& shape, double seconds) {
  RETURN_IF_ERROR(kernel.available({.kind = DeviceKind::kSim, .chip = chip}));
  ASSIGN_OR_RETURN(const Problem problem, SimulatorProblem(kernel, shape));
  const Sample sample(kernel, chip, problem);
  std::vector<std::byte> accumulators = sample.MakeAccumulators();
  std::vector<double> times;
  const auto start = std::chrono::steady_clock::now();
  std::chrono::duration<double> total{0};
  while (static_cast<int>(times.size()) < kLeastSamples || total.count() < seconds) {
    const auto before = std::chrono::steady_clock::now();
    sample.Multiply(path, accumulators);
    const auto after = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double>(after - before).count());
    total = after - start;
  }
  std::sort(times.begin(), times.end());
  const double all = shape.operations() / 2;
  return SimulatorRun{.kernel = std::string(kernel.name),
                      .chip = std::string(mma::NameOf(chip)),
                      .path = std::string(NameOf(path)),
                      .shape = shape,
                      .median_seconds = times[times.size() / 2],
                      .fastest_seconds = times.front(),
                      .multiplications = kernel.instruction->is_sparse() ? all / 2 : all,
                      .samples = static_cast<int>(times.size()),
                      .verdict = Compare(kernel, chip, problem, path)};
}

std::string SimulatorTableHeader() {
  return absl::StrFormat("%-40s %-7s %-7s %15s %9s %9s  %s\n", "kernel", "chip", "path",
                         "m x n x k", "median", "fastest", "check") +
         absl::StrFormat("%-40s %-7s %-7s %15s %9s %9s\n", "", "", "", "", "GMAC/s", "GMAC/s");
}

std::string SimulatorTableLine(const SimulatorRun& run) {
  return absl::StrFormat("%-40s %-7s %-7s %15s %9.3f %9.3f  %s\n", run.kernel, run.chip, run.path,
                         NameOf(run.shape), run.multiplications / run.median_seconds / 1e9,
                         run.multiplications / run.fastest_seconds / 1e9, run.verdict);
}

std::string SimulatorJson(std::string_view processor, int threads,
                          const std::vector<SimulatorRun>& runs) {
  nlohmann::json report = {{"processor", processor}, {"threads", threads}};
  report["runs"] = nlohmann::json::array();
  for (const SimulatorRun& run : runs) {
    report["runs"].push_back({{"kernel", run.kernel},
                              {"chip", run.chip},
                              {"path", run.path},
                              {"m", run.shape.m},
                              {"n", run.shape.n},
                              {"k", run.shape.k},
                              {"median_seconds", run.median_seconds},
                              {"fastest_seconds", run.fastest_seconds},
                              {"multiplications", run.multiplications},
                              {"samples", run.samples},
                              {"check", run.verdict}});
  }
  return report.dump(2) + "\n";
}

}  // namespace gemmd::bench
