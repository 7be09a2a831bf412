// SPDX-License-Identifier: Apache-2.0
#include "kernels/host_rates.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/host.h"
#include "kernels/cpu/widen.h"
#include "kernels/device_profile.h"
#include "kernels/epilogue.h"
#include "kernels/kernel.h"
#include "kernels/matrix/sparse24.h"
#include "kernels/matrix/text.h"
#include "kernels/mma/element_type.h"
#include "kernels/select.h"
#include "kernels/sim/prediction.h"
#include "kernels/sim/product.h"

namespace gemmd {
namespace {

constexpr double kCostSeconds = 1e-3;  // For each of some hundred measurements.

// Two tiles of the epilogue.
constexpr int64_t kLines = 32;
constexpr int64_t kLength = 256;
constexpr int64_t kElements = kLines * kLength;

MatrixLayout Layout(ElementType type, int64_t rows, int64_t columns,
                    Order order = Order::kRowMajor) {
  return TightLayout("sample", type, order, rows, columns).value();
}

// Bytes of elements that are 1, or close to 1.
std::vector<std::byte> Ones(ElementType type, int64_t elements) {
  const std::vector<float> values(static_cast<size_t>(elements), 1.0F);
  std::vector<std::byte> bytes(static_cast<size_t>(elements) * 8);
  EncodeLine(type, values.data(), elements, bytes.data());
  return bytes;
}

double WideningOf(ElementType from, ElementType to, int64_t lines, int64_t length) {
  const std::vector<std::byte> source = Ones(from, lines * length);
  std::vector<std::byte> copy(source.size());
  const MatrixLayout source_layout = Layout(from, lines, length);
  const MatrixLayout copy_layout = Layout(to, lines, length);
  const bool is_biased = from == ElementType::kU8 && to == ElementType::kS8;
  const Widening widening = is_biased ? Widening::kLess128 : Widening::kValue;
  return FastestSeconds(
      [&] { Widen(widening, source_layout, source.data(), copy_layout, copy.data()); },
      kCostSeconds);
}

double ExpansionOf(ElementType type) {
  constexpr int64_t kRows = 4;
  constexpr int64_t kColumns = 1024;
  const SparseLayout layout = SparseLayoutOf("sample", type, kRows, kColumns).value();
  const std::vector<std::byte> sparse(static_cast<size_t>(layout.bytes), std::byte{0x44});
  std::vector<std::byte> dense(static_cast<size_t>(layout.dense_bytes));
  return FastestSeconds([&] { Expand(layout, sparse.data(), dense.data()); }, kCostSeconds) /
         (kRows * kColumns);
}

// One epilogue, which the functions below vary.
struct Sample {
  Problem problem;
  Accumulators accumulators;
  std::vector<std::byte> accumulated;
  std::vector<std::byte> c;
  std::vector<std::byte> bias;
  std::vector<float> a_scale;
  std::vector<float> b_scale;

  explicit Sample(ElementType stored, ElementType type, int64_t m = kLines, int64_t n = kLength)
      : accumulated(Ones(stored, m * n)) {
    problem.m = m;
    problem.n = n;
    problem.k = 1;
    problem.d = Layout(type, m, n);
    problem.accumulation = type;
    accumulators.data = accumulated.data();
    accumulators.stored = stored;
    accumulators.leading_dimension = n;
    accumulators.type = type;
  }

  double Seconds() const {
    std::vector<std::byte> d(static_cast<size_t>(problem.m * problem.n) * 8);
    const GemmArgs args = {.problem = problem,
                           .target = {},
                           .a = nullptr,
                           .b = nullptr,
                           .c = c.data(),
                           .bias = bias.data(),
                           .a_scale = a_scale,
                           .b_scale = b_scale,
                           .d = d.data(),
                           .workspace = {}};
    return FastestSeconds([&] { ApplyEpilogue(args, 0, accumulators); }, kCostSeconds);
  }
};

// How much longer a sample takes than another, per element.
double Added(const Sample& sample, double seconds) {
  return std::max(0.0, sample.Seconds() - seconds) / kElements;
}

// Measures the conversion of operands to the types that CPU rows compute in. These functions
// measure the calling thread, which must have one thread (SetThreads), and take a few milliseconds.
CopyCosts MeasureCopies() {
  CopyCosts costs;
  constexpr int64_t kLong = 4096;
  constexpr int64_t kMany = 64;
  const double one = WideningOf(ElementType::kF16, ElementType::kF32, 1, 1);
  const double many = WideningOf(ElementType::kF16, ElementType::kF32, kMany, 1);
  costs.line = std::max(0.0, many - one) / (kMany - 1);
  costs.matrix = std::max(0.0, one - costs.line);
  const double biased = WideningOf(ElementType::kU8, ElementType::kS8, kMany, 1);
  costs.biased_line = std::max(0.0, biased - costs.matrix) / kMany;
  for (const ElementType from : kAllElementTypes) {
    for (const ElementType to : {ElementType::kF64, ElementType::kF32, ElementType::kBf16,
                                 ElementType::kS8, ElementType::kU8}) {
      const bool is_widened =
          BitsOf(from) <= BitsOf(to) && from != ElementType::kF64 && from != ElementType::kS32;
      if (!is_widened) continue;
      const double seconds = WideningOf(from, to, 1, kLong);
      costs.widen[static_cast<size_t>(from)][to] = std::max(0.0, seconds - one) / kLong;
    }
    if (SparseFormOf(from)) costs.expand[from] = ExpansionOf(from);
  }
  return costs;
}

// The epilogue of accumulators of f32, or of f64 and s32.
EpilogueCosts MeasureEpilogue(ElementType type) {
  EpilogueCosts costs;
  const double one = Sample(type, type, 1, 1).Seconds();
  const double many = Sample(type, type, kLines, 1).Seconds();
  costs.line = std::max(0.0, many - one) / (kLines - 1);
  costs.matrix = std::max(0.0, one - costs.line);
  const double lines = costs.matrix + kLines * costs.line;
  // The minimum is encoding D in the type itself; loads come on top of it.
  Sample empty(type, type);
  empty.problem.k = 0;
  empty.accumulators.data = nullptr;
  const double zero = empty.Seconds();
  const double base = Sample(type, type).Seconds();
  costs.encode[type] = std::max(0.0, zero - lines) / kElements;
  costs.load[type] = std::max(0.0, base - zero) / kElements;
  for (const ElementType d : kAllElementTypes) {
    if (d == type) continue;
    empty.problem.d = Layout(d, kLines, kLength);
    costs.encode[d] = std::max(0.0, empty.Seconds() - lines) / kElements;
  }
  if (type == ElementType::kF64) {
    const double in_f64 = Sample(ElementType::kF64, ElementType::kS32).Seconds();
    const double in_s32 = Sample(ElementType::kS32, ElementType::kS32).Seconds();
    const double stored = lines + kElements * costs.encode[ElementType::kS32];
    costs.load[ElementType::kS32] = std::max(0.0, in_s32 - stored) / kElements;
    costs.load_integer_from_float = std::max(0.0, in_f64 - stored) / kElements;
  }
  const auto added = [&](const auto& change) {
    Sample sample(type, type);
    change(sample);
    return Added(sample, base);
  };
  costs.scale = added([](Sample& sample) {
    sample.problem.a_scale = sample.problem.b_scale = ScaleKind::kVector;
    sample.a_scale.assign(kLines, 1.0F);
    sample.b_scale.assign(kLength, 1.0F);
  });
  costs.alpha = added([](Sample& sample) { sample.problem.alpha = 0.5; });
  costs.bias = added([type](Sample& sample) {
    sample.problem.bias_axis = BiasAxis::kColumns;
    sample.problem.bias_type = type;
    sample.bias = Ones(type, kLength);
  });
  const auto added_by_c = [&](ElementType c, Order order) {
    return added([&](Sample& sample) {
      sample.problem.beta = 0.5;
      sample.problem.c = Layout(c, kLines, kLength, order);
      sample.c = Ones(c, kLines * kLength);
    });
  };
  costs.c = added_by_c(type, Order::kRowMajor);
  costs.c_across = added_by_c(type, Order::kColumnMajor);
  for (const ElementType c : {ElementType::kF16, ElementType::kBf16, ElementType::kE4m3,
                              ElementType::kS8, ElementType::kS4}) {
    costs.decode[c] = std::max(0.0, added_by_c(c, Order::kRowMajor) - costs.c);
  }
  for (const Activation activation :
       {Activation::kRelu, Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu}) {
    costs.activation[static_cast<size_t>(activation)] = added([&](Sample& sample) {
      sample.problem.activation = activation;
      // Half of the numbers are so large that their activation is the number itself or zero.
      std::vector<float> values(kElements);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 33) - 16;
      EncodeLine(type, values.data(), kElements, sample.accumulated.data());
    });
  }
  return costs;
}

// The wall time to start one thread and wait for its end.
double MeasureThreadStart() {
  constexpr int kTimes = 20;
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::thread([] {}).join();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    shortest = std::min(shortest, elapsed.count());
  }
  return shortest;
}

// The C library reads at memory speed, regardless of this file's compiler flags.
double MeasureMemoryBytesPerSecond() {
  constexpr size_t kBytes = size_t{24} << 20;
  const std::vector<std::byte> bytes(kBytes, std::byte{1});
  size_t found = 0;
  const double seconds = FastestSeconds(
      [&] { found += std::memchr(bytes.data(), 2, kBytes) != nullptr ? 1 : 0; }, 1e-2);
  return found == 0 ? static_cast<double>(kBytes) / seconds : 0;
}

// Measures fresh, zeroed memory from the system, as for a large D.
double MeasureClearedBytesPerSecond() {
  constexpr size_t kBytes = size_t{4} << 20;
  size_t sum = 0;
  const double seconds = FastestSeconds(
      [&] { sum += std::string(kBytes, '\0').back() == '\0' ? 1 : 0; }, kCostSeconds);
  return sum > 0 ? static_cast<double>(kBytes) / seconds : 0;
}

// Memory of operands and results, reused for all samples: fresh memory would be slower. A and B
// hold numbers of every type, without zeros and subnormals, which may be faster or slower to
// multiply; the indices of a sparse A keep the first two of four.
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

// Seconds of one launch; 0 if it cannot be measured.
double SecondsOf(const Kernel& kernel, const Problem& problem, Bench& bench, double max_seconds) {
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
  const double seconds = FastestSeconds([&] { status.Update(kernel.launch(args)); }, max_seconds);
  return status.ok() ? seconds : 0;
}

// Whether a row passes operands to its engine in place, so that only the engine is measured.
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

// A product of the engine's own types. Small products come in batches with shared operands.
Problem EngineSample(const Kernel& kernel, int64_t m, int64_t n, int64_t k, Order a, Order b) {
  constexpr int64_t kMaxInBatch = 32;
  const ElementType sum = kernel.recipe.accumulation;
  Problem problem;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.batch = m * n * k <= 4096 ? kMaxInBatch : 1;
  problem.a = TightLayout("a", kernel.a, a, m, k).value();
  problem.b = TightLayout("b", kernel.b, b, k, n).value();
  problem.a.batch_stride_bytes = problem.b.batch_stride_bytes = 0;
  problem.d = TightLayout("d", sum, Order::kRowMajor, m, n).value();
  problem.accumulation = sum;
  return problem;
}

double SecondsOfSample(const Kernel& kernel, Bench& bench, const Problem& sample) {
  constexpr double kMaxSeconds = 4e-4;
  return std::max(SecondsOf(kernel, sample, bench, kMaxSeconds), 1e-9) /
         static_cast<double>(sample.batch);
}

// Whether a slow product of large extents can be extrapolated instead of measured.
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

// If both factors are large, libraries pack them, and their order hardly matters.
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

// The extra cost per element of X if Y is biased. Uses few columns, so that other work is small.
double MeasureBiased(const Kernel& biased, Bench& bench, const HostCosts& costs, Order a,
                     const ExtentGrid& grid) {
  constexpr int64_t kRows = 1024;
  constexpr int64_t kColumns = 8;
  constexpr int64_t kDepth = 1024;
  const Problem sample = EngineSample(biased, kRows, kColumns, kDepth, a, Order::kRowMajor);
  const double others =
      WideningSeconds(costs, sample.b, ElementType::kS8) + grid.Seconds(kRows, kColumns, kDepth);
  return std::max(0.0, SecondsOfSample(biased, bench, sample) - others) / (kRows * kDepth);
}

// The row of an engine that passes u8 values less 128 to it; null if there is none.
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

// Rows of the engine with different costs: the smallest and the largest tiles, and a row with
// operands narrower than a byte.
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
  constexpr double kMaxSeconds = 2e-3;
  std::vector<TimedWork<SimulatedWork::kParts>> works;
  for (const Kernel* kernel : VariedRows(engine, bench.target)) {
    const ElementType sum =
        kernel->instruction->d == ElementType::kF16 ? ElementType::kF32 : kernel->instruction->d;
    for (const Problem& problem : sim::SampleProblems(*kernel, bench.target.chip)) {
      const double seconds = SecondsOf(*kernel, problem, bench, kMaxSeconds);
      const double multiplying = seconds - costs.launch - EpilogueSeconds(costs, problem, sum, sum);
      if (!(multiplying > 0)) continue;
      works.push_back(
          {sim::WorkOf(*kernel->instruction, bench.target.chip, problem).parts, multiplying});
    }
  }
  return {.engine = std::string(engine), .seconds = {FitCosts(works)}};
}

SplitCosts MeasureSplitting() {
  constexpr int64_t kDepth = 16;  // Most exact sums are those of products too shallow to be split.
  sim::SplitSample sample;
  const auto seconds_of = [](const auto& work, int64_t elements) {
    return FastestSeconds(work, kCostSeconds) / static_cast<double>(elements);
  };
  SplitCosts costs;
  costs.split = seconds_of([&] { sample.Split(); }, sim::SplitSample::kSplit);
  costs.join = seconds_of([&] { sample.Join(); }, sim::SplitSample::kJoined);
  const double one = seconds_of([&] { sample.SumExactly(1); }, sim::SplitSample::kJoined);
  const double many = seconds_of([&] { sample.SumExactly(kDepth); }, sim::SplitSample::kJoined);
  costs.add = std::max(0.0, many - one) / (kDepth - 1);
  costs.sum = std::max(0.0, one - costs.add);
  return costs;
}

// Operations per second on one thread of the engine for block factors; 0 if it cannot be measured.
EngineRate MeasureBlockRate(const Kernel& kernel, Bench& bench) {
  constexpr double kMaxSeconds = 2e-3;
  EngineRate rate = {std::string(kernel.engine), 0};
  const absl::StatusOr<Problem> sample = kernel.sample(bench.target);
  if (!sample.ok()) return rate;
  const double seconds = SecondsOf(kernel, *sample, bench, kMaxSeconds);
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

// How much longer a single one-element product takes than one of a batch.
double LaunchSeconds(const Kernel& kernel, Bench& bench, const ExtentGrid& grid) {
  using enum Order;
  Problem alone = EngineSample(kernel, 1, 1, 1, kRowMajor, kRowMajor);
  alone.batch = 1;
  return std::max(0.0, SecondsOfSample(kernel, bench, alone) - grid.Seconds(1, 1, 1));
}

// The rate of a large cube.
double RateOf(const Kernel& kernel, const DeviceProfile& profile, const HostCosts& costs) {
  const absl::StatusOr<Problem> cube = kernel.sample(profile.target);
  if (!cube.ok()) return 0;
  return costs.threads * static_cast<double>(Operations(*cube)) /
         kernel.predicted_seconds(*cube, profile, 1e9);
}

}  // namespace

DeviceProfile MeasureRates(const Target& target) {
  // Rates are measured on one thread and multiplied by the threads. Threads that temporarily share
  // a core, as on a busy machine, spin while waiting for each other; that was seen to make a rate
  // 40 times too low for the daemon's lifetime.
  const int threads = ThreadsOfLaunches();
  HostCosts costs = MeasureSharedCosts(target, threads);
  SetThreads(1);
  Bench bench = {.target = target};
  if (target.kind == DeviceKind::kSim) costs.splitting = MeasureSplitting();
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

// Serialized as numbers: the head, then the lists whose lengths are in the head.

namespace {

// The fixed part of a host profile. An engine is identified by one of its kernels.
struct ProfileHead {
  double converted_elements_per_second = 0;
  double threads = 0;
  double launch = 0;
  double share = 0;
  double start_thread = 0;
  double memory_bytes_per_second = 0;
  double cleared_bytes_per_second = 0;
  CopyCosts copies;
  EpilogueCosts finish_f32;
  EpilogueCosts finish_f64;
  SplitCosts splitting;
  double engines = 0;
  double simulators = 0;
  double rates = 0;
};

template <typename Part>
constexpr size_t NumbersIn() {
  static_assert(std::is_trivially_copyable_v<Part> && alignof(Part) == alignof(double));
  return sizeof(Part) / sizeof(double);
}

template <typename Part>
void Append(const Part& part, std::vector<double>& numbers) {
  numbers.resize(numbers.size() + NumbersIn<Part>());
  std::memcpy(numbers.data() + numbers.size() - NumbersIn<Part>(), &part, sizeof(Part));
}

double PositionOf(std::string_view engine, absl::Span<const Kernel> catalog) {
  const auto has_it = [&](const Kernel& kernel) { return kernel.engine == engine; };
  return static_cast<double>(std::find_if(catalog.begin(), catalog.end(), has_it) -
                             catalog.begin());
}

// Reads numbers from the front. After an error, returns zeros.
class NumberReader {
 public:
  NumberReader(absl::Span<const double> numbers, absl::Span<const Kernel> catalog)
      : left_(numbers), catalog_(catalog) {
    is_right_ = std::all_of(left_.begin(), left_.end(), [](double n) { return std::isfinite(n); });
  }

  template <typename Part>
  void Take(Part& part) {
    is_right_ = is_right_ && left_.size() >= NumbersIn<Part>();
    if (!is_right_) return;
    std::memcpy(static_cast<void*>(&part), left_.data(), sizeof(Part));
    left_.remove_prefix(NumbersIn<Part>());
  }
  void TakeEngine(std::string& engine) {
    double position = 0;
    Take(position);
    is_right_ = is_right_ && position >= 0 && position < static_cast<double>(catalog_.size());
    if (is_right_) engine = catalog_[static_cast<size_t>(position)].engine;
  }
  // A list is never longer than the list of kernels.
  size_t Count(double count) {
    is_right_ = is_right_ && count >= 0 && count <= static_cast<double>(catalog_.size());
    return is_right_ ? static_cast<size_t>(count) : 0;
  }
  bool is_over() const { return is_right_ && left_.empty(); }

 private:
  absl::Span<const double> left_;
  const absl::Span<const Kernel> catalog_;
  bool is_right_ = false;
};

}  // namespace

std::vector<double> NumbersOf(const DeviceProfile& profile) {
  const HostCosts& costs = *profile.host;
  const absl::Span<const Kernel> catalog = Catalog(profile.target.kind);
  std::vector<double> numbers;
  Append(ProfileHead{.converted_elements_per_second = profile.converted_elements_per_second,
                     .threads = static_cast<double>(costs.threads),
                     .launch = costs.launch,
                     .share = costs.share,
                     .start_thread = costs.start_thread,
                     .memory_bytes_per_second = costs.memory_bytes_per_second,
                     .cleared_bytes_per_second = costs.cleared_bytes_per_second,
                     .copies = costs.copies,
                     .finish_f32 = costs.finish_f32,
                     .finish_f64 = costs.finish_f64,
                     .splitting = costs.splitting,
                     .engines = static_cast<double>(costs.engines.size()),
                     .simulators = static_cast<double>(costs.simulators.size()),
                     .rates = static_cast<double>(profile.rates.size())},
         numbers);
  for (const EngineTimes& times : costs.engines) {
    Append(PositionOf(times.engine, catalog), numbers);
    Append(times.grids, numbers);
    Append(times.biased, numbers);
  }
  for (const SimulatorTimes& times : costs.simulators) {
    Append(PositionOf(times.engine, catalog), numbers);
    Append(times.seconds, numbers);
  }
  for (const EngineRate& rate : profile.rates) {
    Append(PositionOf(rate.engine, catalog), numbers);
    Append(rate.operations_per_second, numbers);
  }
  return numbers;
}

absl::StatusOr<DeviceProfile> ProfileOf(const Target& target, absl::Span<const double> numbers) {
  NumberReader reader(numbers, Catalog(target.kind));
  ProfileHead head;
  reader.Take(head);
  HostCosts costs = {.threads = static_cast<int>(std::clamp(head.threads, 1.0, 1e6)),
                     .launch = head.launch,
                     .share = head.share,
                     .start_thread = head.start_thread,
                     .memory_bytes_per_second = head.memory_bytes_per_second,
                     .cleared_bytes_per_second = head.cleared_bytes_per_second,
                     .copies = head.copies,
                     .finish_f32 = head.finish_f32,
                     .finish_f64 = head.finish_f64,
                     .splitting = head.splitting,
                     .engines = std::vector<EngineTimes>(reader.Count(head.engines)),
                     .simulators = std::vector<SimulatorTimes>(reader.Count(head.simulators))};
  DeviceProfile profile = {.target = target,
                           .rates = std::vector<EngineRate>(reader.Count(head.rates))};
  profile.converted_elements_per_second = head.converted_elements_per_second;
  for (EngineTimes& times : costs.engines) {
    reader.TakeEngine(times.engine);
    reader.Take(times.grids);
    reader.Take(times.biased);
  }
  for (SimulatorTimes& times : costs.simulators) {
    reader.TakeEngine(times.engine);
    reader.Take(times.seconds);
  }
  for (EngineRate& rate : profile.rates) {
    reader.TakeEngine(rate.engine);
    reader.Take(rate.operations_per_second);
  }
  if (!reader.is_over()) {
    return absl::InvalidArgumentError(
        Concat("rates: got ", numbers.size(), " numbers that are no rates of this host"));
  }
  profile.host = std::make_shared<const HostCosts>(std::move(costs));
  return profile;
}

}  // namespace gemmd
