// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_rates.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "kernels/catalog.h"
#include "kernels/cpu/host.h"
#include "kernels/cpu/threads.h"
#include "kernels/fastest_time.h"
#include "kernels/fit_costs.h"
#include "kernels/measure_costs.h"
#include "kernels/select.h"
#include "kernels/sim/prediction.h"

namespace gemmd {
namespace {

// Operands and results of samples, one after the other: memory that is new takes longer.
//
// A and B hold numbers of every type, neither zeros nor subnormals, which may be faster or slower
// to multiply; the indices of a sparse A keep the first two of four.
class SampleMemory {
 public:
  const std::byte* A(const MatrixLayout& layout) {
    return Grow(layout.is_sparse() ? sparse_a_ : a_, BytesOf("a", layout, 1).value().full,
                layout.is_sparse() ? std::byte{0x44} : std::byte{0x3f});
  }
  const std::byte* B(const MatrixLayout& layout) {
    return Grow(b_, BytesOf("b", layout, 1).value().full, std::byte{0x3f});
  }
  const std::byte* FactorsOfA(const Problem& problem) {
    return Factors(a_factors_, problem.blocks_of_a(), problem.m, problem.k);
  }
  const std::byte* FactorsOfB(const Problem& problem) {
    return Factors(b_factors_, problem.blocks_of_b(), problem.n, problem.k);
  }
  std::byte* D(const Problem& problem) { return Grow(d_, BytesWritten(problem), std::byte{0}); }
  absl::Span<std::byte> Workspace(int64_t bytes) {
    return {Grow(workspace_, bytes, std::byte{0}), static_cast<size_t>(bytes)};
  }

 private:
  using Bytes = std::vector<std::byte>;

  static std::byte* Grow(Bytes& bytes, int64_t wanted, std::byte value) {
    if (static_cast<int64_t>(bytes.size()) < wanted) {
      bytes.assign(static_cast<size_t>(wanted), value);
    }
    return bytes.data();
  }

  static const std::byte* Factors(Bytes& bytes, const BlockScale* blocks, int64_t extent,
                                  int64_t k) {
    if (blocks == nullptr) return nullptr;
    return Grow(bytes, FactorBytes("factors", *blocks, extent, k, 1).value(), std::byte{0x3f});
  }

  Bytes a_;
  Bytes sparse_a_;
  Bytes b_;
  Bytes a_factors_;
  Bytes b_factors_;
  Bytes d_;
  Bytes workspace_;
};

// A device of the host while it is measured.
struct Bench {
  const Target& target;
  SampleMemory memory = {};
};

// Seconds of one launch; 0 where it cannot be measured.
double SecondsOf(const Kernel& kernel, const Problem& problem, Bench& bench, double most_seconds) {
  const absl::StatusOr<int64_t> workspace_bytes = kernel.workspace_bytes(problem);
  if (!kernel.supports(problem).ok() || !workspace_bytes.ok()) return 0;
  const GemmArgs args = {.problem = problem,
                         .target = bench.target,
                         .a = bench.memory.A(problem.a),
                         .b = bench.memory.B(problem.b),
                         .c = nullptr,
                         .bias = nullptr,
                         .a_scale = {},
                         .b_scale = {},
                         .d = bench.memory.D(problem),
                         .workspace = bench.memory.Workspace(*workspace_bytes),
                         .a_factors = bench.memory.FactorsOfA(problem),
                         .b_factors = bench.memory.FactorsOfB(problem)};
  absl::Status status;
  const double seconds = FastestSeconds([&] { status.Update(kernel.launch(args)); }, most_seconds);
  return status.ok() ? seconds : 0;
}

// Whether a row gives its engine the operands in place, so that the engine alone is measured.
bool MeasuresEngine(const Kernel& kernel) {
  return kernel.a == kernel.recipe.a_compute && kernel.b == kernel.recipe.b_compute &&
         kernel.b != ElementType::kU8;
}

// The first row of each engine that the target has and that shows the engine's speed.
std::vector<const Kernel*> KernelsToMeasure(const Target& target) {
  std::vector<const Kernel*> kernels;
  for (const Kernel& kernel : Catalog(target.kind)) {
    const bool is_known = std::any_of(kernels.begin(), kernels.end(), [&](const Kernel* known) {
      return known->engine == kernel.engine;
    });
    const bool shows_engine = target.kind == DeviceKind::kSim || MeasuresEngine(kernel);
    if (!is_known && shows_engine && kernel.available(target).ok()) kernels.push_back(&kernel);
  }
  return kernels;
}

// A product of the engine's own types. Small ones come in batches, all of the same operands.
Problem EngineSample(const Kernel& kernel, int64_t m, int64_t n, int64_t k, Order a, Order b) {
  constexpr int64_t kMostInBatch = 32;
  const ElementType sum = kernel.recipe.accumulation;
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.batch = m * n * k <= 4096 ? kMostInBatch : 1;
  problem.a = TightLayout("a", kernel.a, a, m, k).value();
  problem.b = TightLayout("b", kernel.b, b, k, n).value();
  problem.a.batch_stride_bytes = problem.b.batch_stride_bytes = 0;
  problem.d = TightLayout("d", sum, Order::kRowMajor, m, n).value();
  problem.accumulation = sum;
  return problem;
}

double SecondsOfSample(const Kernel& kernel, Bench& bench, const Problem& sample) {
  constexpr double kMostSeconds = 4e-4;
  return std::max(SecondsOf(kernel, sample, bench, kMostSeconds), 1e-9) /
         static_cast<double>(sample.batch);
}

// Products of the largest extents that take long are left out.
bool CanFollow(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kLarge = 384;
  constexpr int64_t kLongest = 1024;
  const int64_t longest = std::max({m, n, k});
  if (longest <= kLarge) return false;
  return m * n * k > (longest <= kLongest ? 9'000'000 : 1'100'000);
}

ExtentGrid MeasureGrid(const Kernel& kernel, Bench& bench) {
  using enum Order;
  return ExtentGrid::Of([&](int64_t m, int64_t n, int64_t k) {
    if (CanFollow(m, n, k)) return 0.0;
    return SecondsOfSample(kernel, bench, EngineSample(kernel, m, n, k, kRowMajor, kRowMajor));
  });
}

// Where both factors are large, libraries pack them, and it matters little how they lie.
ExtentGrid MeasureTransposed(const Kernel& kernel, Bench& bench, Order a, Order b,
                             const ExtentGrid& plain) {
  constexpr int64_t kSmall = 64;
  return ExtentGrid::Of([&](int64_t m, int64_t n, int64_t k) {
    const bool is_vector = std::min(m, n) == 1;
    if (!is_vector && std::max({m, n, k}) > kSmall) return plain.Seconds(m, n, k);
    if (CanFollow(m, n, k)) return 0.0;
    return SecondsOfSample(kernel, bench, EngineSample(kernel, m, n, k, a, b));
  });
}

// What an element of X costs more where Y is biased: few columns, so that little else is done.
double MeasureBiased(const Kernel& biased, Bench& bench, const HostCosts& costs, Order a,
                     const ExtentGrid& grid) {
  constexpr int64_t kLines = 1024;
  constexpr int64_t kColumns = 8;
  constexpr int64_t kDepth = 1024;
  const Problem sample = EngineSample(biased, kLines, kColumns, kDepth, a, Order::kRowMajor);
  const double others =
      WideningSeconds(costs, sample.b, ElementType::kS8) + grid.Seconds(kLines, kColumns, kDepth);
  return std::max(0.0, SecondsOfSample(biased, bench, sample) - others) / (kLines * kDepth);
}

// The row of an engine that gives it u8 values less 128; null: it has none.
const Kernel* BiasedRow(std::string_view engine, const Target& target) {
  for (const Kernel& kernel : Catalog(target.kind)) {
    const bool is_biased = kernel.a == ElementType::kU8 && kernel.b == ElementType::kU8 &&
                           kernel.recipe.b_compute == ElementType::kU8;
    if (is_biased && kernel.engine == engine && kernel.available(target).ok()) return &kernel;
  }
  return nullptr;
}

EngineTimes MeasureEngine(const Kernel& kernel, Bench& bench, const HostCosts& costs) {
  using enum Order;
  EngineTimes times;
  times.engine = kernel.engine;
  const ExtentGrid plain = MeasureGrid(kernel, bench);
  const ExtentGrid x = MeasureTransposed(kernel, bench, kColumnMajor, kRowMajor, plain);
  const ExtentGrid y = MeasureTransposed(kernel, bench, kRowMajor, kColumnMajor, plain);
  const ExtentGrid both = ExtentGrid::Of([&](int64_t m, int64_t n, int64_t k) {
    return x.Seconds(m, n, k) * y.Seconds(m, n, k) / plain.Seconds(m, n, k);
  });
  times.grids = {{{plain, y}, {x, both}}};
  if (const Kernel* const biased = BiasedRow(kernel.engine, bench.target)) {
    times.biased = {MeasureBiased(*biased, bench, costs, kRowMajor, plain),
                    MeasureBiased(*biased, bench, costs, kColumnMajor, x)};
  }
  return times;
}

// Rows of the engine that differ in what their products cost: those of the smallest and of the
// largest tiles, and one whose operands are narrower than a byte.
std::set<const Kernel*> VariedRows(std::string_view engine, const Target& target) {
  const Kernel* smallest = nullptr;
  const Kernel* largest = nullptr;
  const Kernel* narrow = nullptr;
  const auto tile = [](const Kernel& kernel) {
    return int64_t{kernel.instruction->m} * kernel.instruction->n * kernel.instruction->k;
  };
  for (const Kernel& kernel : Catalog(DeviceKind::kSim)) {
    if (kernel.engine != engine || !kernel.available(target).ok()) continue;
    if (smallest == nullptr || tile(kernel) < tile(*smallest)) smallest = &kernel;
    if (largest == nullptr || tile(kernel) > tile(*largest)) largest = &kernel;
    if (narrow == nullptr && BitsOf(kernel.a) < 8) narrow = &kernel;
  }
  std::set<const Kernel*> rows = {smallest, largest, narrow};
  rows.erase(nullptr);
  return rows;
}

SimulatorTimes MeasureSimulator(std::string_view engine, Bench& bench, const HostCosts& costs) {
  constexpr double kMostSeconds = 2e-3;
  std::vector<TimedWork<SimulatedWork::kParts>> works;
  for (const Kernel* kernel : VariedRows(engine, bench.target)) {
    const ElementType sum =
        kernel->instruction->d == ElementType::kF16 ? ElementType::kF32 : kernel->instruction->d;
    for (const Problem& problem : sim::SampleProblems(*kernel, bench.target.chip)) {
      const double seconds = SecondsOf(*kernel, problem, bench, kMostSeconds);
      const double multiplying = seconds - costs.launch - EpilogueSeconds(costs, problem, sum, sum);
      if (!(multiplying > 0)) continue;
      works.push_back(
          {sim::WorkOf(*kernel->instruction, bench.target.chip, problem).parts, multiplying});
    }
  }
  return {.engine = std::string(engine), .seconds = {FitCosts(works)}};
}

// Operations a second of one thread of the engine that multiplies by factors of blocks; 0 where it
// cannot be measured.
EngineRate MeasureBlockRate(const Kernel& kernel, Bench& bench) {
  constexpr double kMostSeconds = 2e-3;
  EngineRate rate = {std::string(kernel.engine), 0};
  const absl::StatusOr<Problem> sample = kernel.sample(bench.target);
  if (!sample.ok()) return rate;
  const double seconds = SecondsOf(kernel, *sample, bench, kMostSeconds);
  if (seconds > 0) rate.operations_per_second = static_cast<double>(Operations(*sample)) / seconds;
  return rate;
}

// The costs that every launch has.
HostCosts MeasureSharedCosts(const Target& target, int threads) {
  HostCosts costs;
  costs.threads = threads;
  costs.share = MeasureSharing(threads);
  costs.start_thread = MeasureThreadStart();
  costs.cleared_bytes_per_second = MeasureClearedBytesPerSecond();
  costs.finish_f32 = MeasureEpilogue(ElementType::kF32);
  costs.finish_f64 = MeasureEpilogue(ElementType::kF64);
  if (target.kind == DeviceKind::kCpu) {
    costs.copies = MeasureCopies();
    costs.memory_bytes_per_second = MeasureMemoryBytesPerSecond();
  }
  return costs;
}

// What one product of one element takes longer than one of many in a batch.
double LaunchSeconds(const Kernel& kernel, Bench& bench, const ExtentGrid& grid) {
  using enum Order;
  Problem alone = EngineSample(kernel, 1, 1, 1, kRowMajor, kRowMajor);
  alone.batch = 1;
  return std::max(0.0, SecondsOfSample(kernel, bench, alone) - grid.Seconds(1, 1, 1));
}

// As fast as a large cube is.
double RateOf(const Kernel& kernel, const DeviceProfile& profile, const HostCosts& costs) {
  const absl::StatusOr<Problem> cube = kernel.sample(profile.target);
  if (!cube.ok()) return 0;
  return costs.threads * static_cast<double>(Operations(*cube)) /
         kernel.predicted_seconds(*cube, profile, 1e9);
}

}  // namespace

DeviceProfile MeasureRates(const Target& target) {
  // Rates are measured on one thread and multiplied by the threads. Several threads that share a
  // core for a while, as on a busy machine, wait for each other by spinning; that was seen to make
  // a rate 40 times too low for all of the daemon's life.
  const int threads = ThreadsOfLaunches();
  HostCosts costs = MeasureSharedCosts(target, threads);
  SetThreads(1);
  Bench bench = {.target = target};
  const std::vector<const Kernel*> kernels = KernelsToMeasure(target);
  for (const Kernel* kernel : kernels) {
    if (target.kind == DeviceKind::kCpu) {
      costs.engines.push_back(MeasureEngine(*kernel, bench, costs));
    } else {
      costs.simulators.push_back(MeasureSimulator(kernel->engine, bench, costs));
    }
  }
  if (!costs.engines.empty()) {
    costs.launch = LaunchSeconds(*kernels.front(), bench, costs.engines.front().grids[0][0]);
  }
  DeviceProfile profile;
  profile.target = target;
  costs.threads = 1;
  profile.host = std::make_shared<const HostCosts>(costs);
  for (const Kernel* kernel : kernels) {
    const double rate = RateOf(*kernel, profile, costs);
    if (rate > 0) profile.rates.push_back({std::string(kernel->engine), threads * rate});
  }
  for (const Kernel& kernel : Catalog(target.kind)) {
    if (kernel.recipe.block_scaling != BlockScaling::kParts) continue;
    EngineRate rate = MeasureBlockRate(kernel, bench);
    rate.operations_per_second *= threads;
    if (rate.operations_per_second > 0) profile.rates.push_back(std::move(rate));
    break;  // One engine has all of these rows.
  }
  costs.threads = threads;
  profile.host = std::make_shared<const HostCosts>(std::move(costs));
  const double widened =
      profile.host->copies.widen[static_cast<size_t>(ElementType::kE4m3)][ElementType::kF32];
  if (widened > 0) profile.converted_elements_per_second = threads / widened;
  SetThreads(threads);
  return profile;
}

}  // namespace gemmd
